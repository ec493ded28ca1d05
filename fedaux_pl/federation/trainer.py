"""Settings of the Trainer that a federation supports."""

from collections.abc import Iterable, Mapping

import pytorch_lightning as pl
from pytorch_lightning import callbacks as lightning_callbacks
from pytorch_lightning.accelerators import MPSAccelerator
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.utilities import rank_zero_warn

from fedaux_pl.callbacks.best_checkpoint import BestCheckpoint
from fedaux_pl.engine import ClientParallel
from fedaux_pl.errors import did_you_mean

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
PRECISION_ALIASES = ("32", "bf16", "16")  # Lightning's other names of them
# Options about batches and gradients of an optimizer, which a federation does not have: its epoch
# is a round. With their default values.
_WITHOUT_EFFECT = {
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "overfit_batches": 0.0,
    "reload_dataloaders_every_n_epochs": 0,
    "val_check_interval": 1.0,
}
_CALLBACKS_WITHOUT_EFFECT = (
    lightning_callbacks.BatchSizeFinder,
    lightning_callbacks.GradientAccumulationScheduler,
    lightning_callbacks.LearningRateFinder,
    lightning_callbacks.StochasticWeightAveraging,
)


def check_trainer(
    trainer: pl.Trainer,
    architectures: Iterable[str],
    has_validation: bool | None = None,
    further: Mapping[str, bool] | None = None,
) -> None:
    """Raise a ValueError for settings of the Trainer that a federation does not support.

    ``has_validation`` is whether rounds are measured on validation data; None if not known yet.
    ``further`` are metrics besides accuracies, with whether a higher value is better.
    """
    if isinstance(trainer.accelerator, MPSAccelerator):
        raise ValueError(
            "trainer.accelerator is mps, but Apple's GPUs have no float64, in which releases are "
            "computed: choose cpu"
        )
    if trainer.precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise ValueError(f"trainer.precision must be one of {allowed}, but is {trainer.precision}")
    if not isinstance(trainer.strategy, SingleDeviceStrategy | ClientParallel):
        raise ValueError(
            "trainer.strategy must be auto, which trains clients in parallel if there are several "
            f"devices, but is {type(trainer.strategy).__name__}"
        )
    check_options(trainer)
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        raise ValueError(
            "trainer.sync_batchnorm is true, but processes train different clients: leave it out"
        )
    if (every := trainer.check_val_every_n_epoch) is not None and every < 1:
        raise ValueError(f"trainer.check_val_every_n_epoch must be at least 1, but is {every}")
    _check_callbacks(trainer, architectures, has_validation, further or {})


def check_options(trainer: pl.Trainer) -> None:
    """Raise a ValueError for an option of the Trainer that has no meaning in a federation."""
    batches = trainer.fast_dev_run or 1  # type: ignore[attr-defined]
    for name, default in {**_WITHOUT_EFFECT, "limit_train_batches": batches}.items():
        if (value := getattr(trainer, name)) != default:
            raise ValueError(
                f"trainer.{name} is {value}, but has no meaning in a federation, whose epoch is a "
                "communication round: leave it out"
            )


def _check_callbacks(
    trainer: pl.Trainer,
    architectures: Iterable[str],
    has_validation: bool | None,
    further: Mapping[str, bool],
) -> None:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, _CALLBACKS_WITHOUT_EFFECT):
            raise ValueError(
                f"trainer.callbacks: {type(callback).__name__} changes a training with one "
                "optimizer, which a federation does not have: leave it out"
            )
    known = {type(callback).__module__.partition(".")[0] for callback in callbacks}
    if not known <= {"pytorch_lightning", "fedaux_pl"}:
        return  # a callback of the user can log metrics of its own
    better = {"accuracy": True, **{f"accuracy/{name}": True for name in architectures}, **further}
    names = list(better)
    on_validation = [f"val/{name}" for name in names]
    losses = ["client_loss/mean", *(f"distillation_loss/{name}" for name in architectures)]
    metrics = {True: on_validation, False: names, None: on_validation + names}[has_validation]
    for callback in callbacks:
        if not isinstance(callback, EarlyStopping | ModelCheckpoint) or callback.monitor is None:
            continue
        if isinstance(callback, BestCheckpoint):
            continue  # it saves nothing without validation data
        if isinstance(callback, EarlyStopping) and not trainer.limit_val_batches:
            raise ValueError(
                f"trainer.callbacks: EarlyStopping monitors {callback.monitor}, but with "
                "trainer.limit_val_batches 0 nothing is measured: leave one of them out"
            )
        others = losses if isinstance(callback, EarlyStopping) else [*losses, "epoch", "step"]
        if callback.monitor not in (*metrics, *others):
            remedy = did_you_mean(callback.monitor, metrics)
            if callback.monitor in on_validation:
                remedy = ": set data.validation_fraction, e.g. to 0.1, to have validation data"
            # not all data name their clients
            listed = ", ".join(n for n in [*metrics, *losses] if "_client/" not in n)
            raise ValueError(
                f"trainer.callbacks: {type(callback).__name__} must monitor one of {listed}, but "
                f"monitors {callback.monitor}{remedy}"
            )
        is_better = better.get(callback.monitor.removeprefix("val/"))
        if is_better is not None and (callback.mode == "max") != is_better:
            low, mode = ("low", "max") if is_better else ("high", "min")
            default = ", Lightning's default" if is_better else ""
            raise ValueError(
                f"trainer.callbacks: {type(callback).__name__} prefers a {low} {callback.monitor}, "
                f"because its mode is {callback.mode!r}{default}: set mode={mode!r}"
            )
        if callback.monitor in names and has_validation is False:
            rank_zero_warn(
                f"{type(callback).__name__} monitors {callback.monitor}, which is measured on the "
                "test data, so what it selects is no estimate for new data: set "
                "data.validation_fraction, e.g. to 0.1, and monitor val/accuracy"
            )
