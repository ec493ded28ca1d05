"""Optimizers by name, and the base of all LightningModules that are trained by one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torchmetrics.aggregation import MeanMetric

OptimizerName = Literal["adam", "adamw", "sgd"]

# Steps are computed in float32: these values, their product and lr / 0.1 of Adam must not overflow.
_MAX_LR, _MAX_WEIGHT_DECAY = 1e30, 1e6


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer as plain values.

    Attributes:
        name: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate, greater than 0 and at most 1e30.
        momentum: For sgd only, in [0, 1).
        weight_decay: At least 0 and at most 1e6.
    """

    name: OptimizerName
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adam", "adamw", "sgd"):
            raise ValueError(f"optimizer must be one of adam, adamw, sgd, but is {self.name!r}")
        if not (isinstance(self.lr, Real) and 0 < self.lr <= _MAX_LR):
            raise ValueError(
                f"lr must be a positive number, but is {self.lr!r} (at most {_MAX_LR:g} is allowed)"
            )
        if not (isinstance(self.momentum, Real) and 0 <= self.momentum < 1):
            raise ValueError(f"momentum must lie in [0, 1), but is {self.momentum!r}")
        if not (
            isinstance(self.weight_decay, Real) and 0 <= self.weight_decay <= _MAX_WEIGHT_DECAY
        ):
            raise ValueError(
                f"weight_decay must be at least 0, but is {self.weight_decay!r} (at most "
                f"{_MAX_WEIGHT_DECAY:g} is allowed)"
            )
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


class MeanLoss(MeanMetric):
    """The weighted mean of losses, in float32 also in a module of half precision.

    The sums of an epoch would stop growing in bfloat16, which has 8 bits.
    """

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        return super()._apply(lambda tensor: fn(tensor).to(tensor.dtype), exclude_state)


class OptimizedModule(pl.LightningModule):
    """A LightningModule with one optimizer, which logs its mean training loss.

    Attributes:
        option: The option of ``Federation`` that sets its optimizer, for error messages.
    """

    option: ClassVar[str] = ""

    def __init__(self, optimizer: OptimizerSettings) -> None:
        super().__init__()
        self.optimizer_settings = optimizer
        self.train_loss = MeanLoss()

    def configure_optimizers(self) -> Optimizer:
        """Creates the optimizer of all parameters that require a gradient."""
        return self.optimizer_settings.create(self.parameters())

    def check_batch(self, batch: Any) -> None:
        """Raises a ValueError for a batch that cannot be trained on; it waits for a GPU.

        ``training_step`` calls it on the CPU. On other devices it is called for the first batch of
        each epoch of a Trainer, because to wait in every step would slow them down.
        """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Checks the first batch of an epoch."""
        if batch_idx == 0 and self.device.type != "cpu":
            self.check_batch(batch)

    def log_training(self, loss: Tensor, batch_size: int) -> None:
        """Logs the mean training loss of the epoch if a Trainer is attached."""
        if self._trainer is not None:
            self.train_loss(loss.detach(), weight=batch_size)
            self.log("train/loss", self.train_loss, on_epoch=True, on_step=False, prog_bar=True)
