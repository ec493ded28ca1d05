"""Your own method: distillation from the median of the clients' logits.

python examples/own_method.py

From the command line, in this folder:
fedaux-pl fit --config quickstart --model.algorithm own_method.FedMedian
"""

import pytorch_lightning as pl
import torch
from torch import Tensor

from fedaux_pl import (
    Algorithm,
    Digits,
    Distillation,
    FederatedDataModule,
    Federation,
    LocalTraining,
)
from fedaux_pl.algorithms import Ensemble


class FedMedian(Algorithm):
    """FedDF with the median in place of the mean, which a few wrong teachers cannot move far.

    Args:
        temperature: The logits are divided by it before the softmax.
        pretrained: Whether models start from the features h_0 learned on the auxiliary data.
    """

    distills = True  # the server asks for soft labels and distills its students from them
    needs_all_updates = True  # a median is not a sum: every process needs all teachers

    def __init__(self, temperature: float = 1.0, pretrained: bool = False) -> None:
        super().__init__(pretrained)
        self.temperature = temperature

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """softmax(median_i f_i(x) / temperature), shape (N, C)."""
        logits = [ensemble.predict(u.architecture, u.state) for u in ensemble.round.updates]
        return (torch.stack(logits).median(dim=0).values / self.temperature).softmax(dim=-1)


def main(rounds: int = 5, width: float = 0.25, root: str = "logs") -> float:
    """Runs a federation with the method and returns its test accuracy after the last round."""
    data = FederatedDataModule(private=Digits(), auxiliary=Digits(), num_clients=10, alpha=1.0)
    federation = Federation(
        FedMedian(),
        clients={"resnet8": 10},
        local=LocalTraining(epochs=2, batch_size=16),
        distillation=Distillation(epochs=2, batch_size=64, lr=1e-3),
        model_options={"width": width},
    )
    trainer = pl.Trainer(max_epochs=rounds, default_root_dir=root, log_every_n_steps=1)
    trainer.fit(federation, datamodule=data)
    return federation.history[-1]["accuracy"]


if __name__ == "__main__":
    print(f"accuracy {main():.1%}")
