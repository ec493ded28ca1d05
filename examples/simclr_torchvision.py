"""SimCLR with a network of torchvision: pre-train it on your images, then use it anywhere.

python examples/simclr_torchvision.py
"""

from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import ResNet, resnet18

from fedaux_pl import Digits, SimCLR


class Backbone(nn.Module):
    """A ResNet in the form that SimCLR expects: ``features``, ``head`` and ``feature_dim``.

    ``SimCLR("torchvision/resnet18")`` needs no such class. It is here to show what a network of
    your own must have.
    """

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.feature_dim = network.fc.in_features
        self.head = network.fc
        network.fc = nn.Identity()
        self.network = network

    def features(self, images: Tensor) -> Tensor:
        """Map images in [0, 1] or uint8, shape (N, 1, H, W), to features of shape (N, 512)."""
        if images.dtype == torch.uint8:
            images = images / 255
        return self.network(images.expand(-1, 3, -1, -1))


def main(epochs: int = 2, samples: int | None = None, folder: str = ".") -> float:
    """Pre-train on unlabeled digits; return the kNN accuracy of the features on test digits."""
    train, test = Digits().train(), Digits().test()
    unlabeled = DataLoader(train.inputs[:samples], batch_size=128, shuffle=True)
    probe = [
        DataLoader(TensorDataset(part.inputs[:samples], part.targets[:samples]), batch_size=512)
        for part in (train, test)  # neighbors, queries
    ]
    pretraining = SimCLR(Backbone(resnet18()))
    trainer = pl.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(pretraining, unlabeled, probe)

    # The weights are those of an ordinary ResNet again.
    path = Path(folder) / "resnet18.pt"
    torch.save(pretraining.backbone.network.state_dict(), path)
    classifier = resnet18()
    classifier.load_state_dict(torch.load(path), strict=False)  # all but its last layer
    return float(trainer.callback_metrics["val/knn_accuracy"])


if __name__ == "__main__":
    pl.seed_everything(0)
    print(f"kNN accuracy: {main():.1%}; the weights are in resnet18.pt")
