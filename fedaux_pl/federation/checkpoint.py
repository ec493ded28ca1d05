"""What a federation adds to Lightning's checkpoint, and how it is restored."""

from collections.abc import Mapping
from typing import Any

from fedaux_pl._version import __version__
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine import checkpoints
from fedaux_pl.lightning import TrainerFn, pl


def describe_run(data: FederatedDataModule, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says about its run: version, settings and data."""
    auxiliary = None if data.auxiliary is None else data.auxiliary.data_name
    return {
        "format": checkpoints.FORMAT,
        "version": __version__,
        "settings": dict(settings),
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
        "input_format": data.input_format,
        "data_names": {"private": data.private_name, "auxiliary": auxiliary},  # for tables
        "site_sizes": dict(data.site_sizes),
    }


def read_content(trainer: pl.Trainer, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the federation has added to a checkpoint, which must be undamaged."""
    is_checked = isinstance(trainer.strategy.checkpoint_io, checkpoints.AtomicCheckpointIO)
    if trainer.ckpt_path is not None and not is_checked:
        checkpoints.check_undamaged(trainer.ckpt_path)
    checkpoints.check_content(checkpoint, "the checkpoint")
    content: Mapping[str, Any] = checkpoint["federation"]
    return content


def check_same_run(
    trainer: pl.Trainer, content: Mapping[str, Any], settings: dict[str, Any]
) -> None:
    """Raise a ConfigurationError if the settings are not those of the checkpoint.

    A fit continues with the same version and all settings. A test may use a later version, and
    other BatchNorm statistics, because a run may be measured in several ways.
    """
    saved = content["settings"]
    if trainer.state.fn is TrainerFn.FITTING:
        checkpoints.check_version(content)
    else:
        settings = checkpoints.without_new(settings, saved)
        settings["batchnorm_statistics"] = saved["batchnorm_statistics"]
    checkpoints.check_resumable(saved, settings)


def is_within_round(trainer: pl.Trainer) -> bool:
    """Return whether Lightning saves before the current round is counted (SLURM's signal)."""
    steps: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return bool(steps.processed < steps.ready)
