"""Optimizers by name, and the base of all LightningModules that are trained by one."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torchmetrics.aggregation import MeanMetric

from fedaux_pl.errors import ConfigurationError, check_setting, is_fraction, is_positive
from fedaux_pl.lightning import LightningModule
from fedaux_pl.modules.model_argument import save_arguments
from fedaux_pl.tensor_files import TensorFileError, load_tensor_file

OptimizerName = Literal["adam", "adamw", "sgd"]

# Steps are computed in float32: these values, their product and lr / 0.1 of Adam must not overflow.
_MAX_LR = 1e30
_MAX_WEIGHT_DECAY = 1e6


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer as plain values.

    Args:
        name: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate, greater than 0 and at most 1e30.
        momentum: For sgd only, in [0, 1).
        weight_decay: At least 0 and at most 1e6.
        clip_norm: The largest norm of the gradients of a step; None for no bound.

    Examples:
        >>> from fedaux_pl import ClientModule, OptimizerSettings
        >>> sgd = OptimizerSettings("sgd", lr=0.1, momentum=0.9)
        >>> client = ClientModule("resnet8", num_classes=10, optimizer=sgd)
    """

    name: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        is_known = self.name in get_args(OptimizerName)
        check_setting("optimizer", self.name, is_known, "be adam, adamw or sgd")
        is_allowed = is_positive(self.lr) and self.lr <= _MAX_LR
        expected = f"be a positive number of at most {_MAX_LR:g}"
        check_setting("lr", self.lr, is_allowed, expected)
        check_setting("momentum", self.momentum, is_fraction(self.momentum), "lie in [0, 1)")
        is_allowed = not self.momentum or self.name == "sgd"
        expected = f"be 0 with {self.name}: momentum belongs to sgd"
        check_setting("momentum", self.momentum, is_allowed, expected)
        decay = self.weight_decay
        is_allowed = isinstance(decay, Real) and 0 <= decay <= _MAX_WEIGHT_DECAY
        expected = f"be a number from 0 to {_MAX_WEIGHT_DECAY:g}"
        check_setting("weight_decay", decay, is_allowed, expected)
        clip = self.clip_norm
        is_allowed = clip is None or is_positive(clip)
        check_setting("clip_norm", clip, is_allowed, "be a positive number or null")

    def plain(self) -> dict[str, Any]:
        """Return the values by the names that checkpoints and configuration files have."""
        values = asdict(self)
        return {"optimizer": values.pop("name"), **values}

    def create(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Create the optimizer of those parameters that require a gradient."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self.name == "sgd":
            return SGD(trained, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = Adam if self.name == "adam" else AdamW
        return kind(trained, lr=self.lr, weight_decay=self.weight_decay)


class MeanLoss(MeanMetric):
    """The weighted mean of losses, in float32: sums of an epoch stop growing in bfloat16."""

    def _apply(
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ""
    ) -> nn.Module:
        return super()._apply(lambda tensor: fn(tensor).to(tensor.dtype), exclude_state)


class OptimizedModule(LightningModule):
    """A LightningModule with one optimizer, which logs its mean training loss.

    ``model`` and ``plain``, values in place of the subclass's arguments, are for checkpoints.
    """

    option: ClassVar[str] = ""
    """The option of ``Federation`` that sets its optimizer, for error messages."""

    def __init__(self, model: str | nn.Module, optimizer: OptimizerSettings, **plain: Any) -> None:
        super().__init__()
        if not isinstance(optimizer, OptimizerSettings):
            raise TypeError(
                f"optimizer: got {optimizer!r}; expected an object such as "
                "OptimizerSettings('sgd', lr=0.1)"
            )
        objects = ["optimizer", "views", "teacher"]
        save_arguments(self, model, ignore=objects, **optimizer.plain(), **plain)
        self.optimizer_settings = optimizer
        self.train_loss = MeanLoss()

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = "cpu",
        *,
        weights_only: bool = True,
        **changed: Any,
    ) -> Self:
        """Create the module of a checkpoint; ``changed`` replaces arguments of its constructor.

        With ``weights_only=False`` a checkpoint can execute code.
        """
        if weights_only:
            checkpoint = _read_checkpoint(Path(checkpoint_path))
        else:
            checkpoint = torch.load(checkpoint_path, map_location, weights_only=False)
        arguments = cls.rebuild_arguments(checkpoint["hyper_parameters"]) | changed
        known = inspect.signature(cls).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            arguments = {name: value for name, value in arguments.items() if name in known}
        module = cls(**arguments)
        module.on_load_checkpoint(checkpoint)
        module.load_state_dict(checkpoint["state_dict"])
        return module.to(None if callable(map_location) else map_location)

    @classmethod
    def rebuild_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments, of which checkpoints have plain values."""
        arguments = dict(saved)
        names = ("optimizer", "lr", "momentum", "weight_decay", "clip_norm")
        values: list[Any] = [arguments.pop(name) for name in names]
        return {**arguments, "optimizer": OptimizerSettings(*values)}

    def configure_optimizers(self) -> Optimizer:
        """Create the optimizer of all parameters that require a gradient."""
        return self.optimizer_settings.create(self.parameters())

    def on_before_optimizer_step(self, optimizer: Optimizer, scale: Any = 1.0) -> None:
        """Clip the gradients, which are multiplied by ``scale``, to ``clip_norm``, if it is set."""
        clip = self.optimizer_settings.clip_norm
        if clip is not None:
            nn.utils.clip_grad_norm_(self.parameters(), clip * scale)

    def check_batch(self, batch: Any) -> None:
        """Raise a ValueError for a batch that cannot be trained on; it waits for a GPU."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Check the first batch of an epoch; to check each one would slow all steps down."""
        if batch_idx == 0:
            self.check_batch(batch)

    def log_training(self, loss: Tensor, batch_size: int) -> None:
        """Log the mean training loss of the epoch if a Trainer is attached."""
        if self._trainer is not None:
            self.train_loss(loss.detach(), weight=batch_size)
            self.log("train/loss", self.train_loss, on_epoch=True, on_step=False, prog_bar=True)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """Read the checkpoint of a LightningModule; raise a ConfigurationError if it is none."""
    try:
        checkpoint = load_tensor_file(path)
    except TensorFileError as error:
        raise ConfigurationError(
            f"{path} cannot be read as a checkpoint ({error}): give one that Lightning wrote"
        ) from error
    for name in ("hyper_parameters", "state_dict"):
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get(name), dict):
            raise ConfigurationError(
                f"{path} has no {name}: give a checkpoint of this module that Lightning wrote"
            )
    return dict(checkpoint)
