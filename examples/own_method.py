"""Your own method: distillation from the median of the clients' logits.

python examples/own_method.py

From the command line, in this folder:
fedaux-pl fit --config quickstart --model.algorithm own_method.FedMedian
"""

from dataclasses import dataclass

import pytorch_lightning as pl
import torch
from torch import Tensor

from fedaux_pl import (
    Digits,
    Distillation,
    FedDF,
    FederatedDataModule,
    Federation,
    LocalTraining,
)
from fedaux_pl.algorithms import Teachers


@dataclass(frozen=True)
class FedMedian(FedDF):
    """FedDF with the median instead of the mean, which a few wrong teachers cannot move far.

    Args:
        temperature: The logits are divided by it before the softmax.
    """

    temperature: float = 1.0

    def soft_labels(self, teachers: Teachers) -> Tensor:
        """softmax(median_i f_i(x) / temperature), shape (N, C)."""
        logits = torch.stack([teacher.logits for teacher in teachers])
        return (logits.median(dim=0).values / self.temperature).softmax(dim=-1)


def main(rounds: int = 5, width: float = 0.25, root: str = "logs") -> float:
    """Run a federation with the method and return its test accuracy after the last round."""
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
