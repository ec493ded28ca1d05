"""SimCLR in your own project: pre-train features, measure them, use them in a classifier.

python examples/simclr_alone.py
"""

import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset

from fedaux_pl import Digits, SimCLR, ViewSettings, create_model, load_backbone


def main(epochs: int = 5, width: float = 0.25) -> float:
    """Pre-trains on the unlabeled training digits; returns the kNN accuracy on the test digits."""
    train, test = Digits().train(), Digits().test()
    unlabeled = DataLoader(TensorDataset(train.inputs), batch_size=128, shuffle=True)
    probe = [
        DataLoader(TensorDataset(part.inputs, part.targets), batch_size=512)
        for part in (train, test)  # neighbors, queries
    ]
    options = {"in_channels": 1, "width": width}
    views = ViewSettings(flip=0.0, min_scale=0.4)
    pretraining = SimCLR("resnet8", views=views, model_options=options)
    trainer = pl.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(pretraining, unlabeled, probe)

    classifier = create_model("resnet8", num_classes=10, **options)  # an ordinary nn.Module
    load_backbone(classifier, pretraining.backbone_state())  # its head is still to be trained
    return float(trainer.callback_metrics["val/knn_accuracy"])


if __name__ == "__main__":
    pl.seed_everything(0)
    print(f"kNN accuracy: {main():.1%}")
