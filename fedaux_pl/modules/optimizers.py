"""Optimizers by name, and the base of all LightningModules that are trained by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pytorch_lightning as pl
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torchmetrics.aggregation import MeanMetric

OptimizerName = Literal["adam", "adamw", "sgd"]


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer as plain values.

    Attributes:
        name: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate, greater than 0.
        momentum: For sgd only, at least 0.
        weight_decay: At least 0.
    """

    name: OptimizerName
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adam", "adamw", "sgd"):
            raise ValueError(f"optimizer must be one of adam, adamw, sgd, but is {self.name!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, but is {self.lr}")
        for name, value in (("momentum", self.momentum), ("weight_decay", self.weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, but is {value}")
        if self.momentum and self.name != "sgd":
            raise ValueError(
                f"momentum belongs to sgd, but the optimizer is {self.name}: leave it at 0"
            )

    def create(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Creates the optimizer of those parameters that require a gradient."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self.name == "sgd":
            return SGD(trained, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = Adam if self.name == "adam" else AdamW
        return kind(trained, lr=self.lr, weight_decay=self.weight_decay)


class OptimizedModule(pl.LightningModule):
    """A LightningModule with one optimizer, which logs its mean training loss."""

    def __init__(self, optimizer: OptimizerSettings) -> None:
        super().__init__()
        self.optimizer_settings = optimizer
        self.train_loss = MeanMetric()

    def configure_optimizers(self) -> Optimizer:
        """Creates the optimizer of all parameters that require a gradient."""
        return self.optimizer_settings.create(self.parameters())

    def log_training(self, loss: Tensor, batch_size: int) -> None:
        """Logs the mean training loss of the epoch if a Trainer is attached."""
        if self._trainer is not None:
            self.train_loss(loss.detach(), weight=batch_size)
            self.log("train_loss", self.train_loss, on_epoch=True, on_step=False, prog_bar=True)
