"""The one place that chooses between the packages ``pytorch_lightning`` and ``lightning.pytorch``.

Both hold the same code, but a Trainer of one refuses a module of the other. Every file of fedaux_pl
imports Lightning's names from here, so that they fit the project that uses them. The choice is

1. the value of the environment variable FEDAUX_PL_LIGHTNING,
2. ``lightning.pytorch``, if it has been imported before fedaux_pl needs Lightning,
3. ``pytorch_lightning``.
"""

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

VARIABLE = "FEDAUX_PL_LIGHTNING"
PACKAGES = ("pytorch_lightning", "lightning.pytorch")


def choose_package() -> str:
    """Return the name of the package whose Lightning this process uses."""
    package = os.environ.get(VARIABLE)
    if not package:
        return "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    if package not in PACKAGES:
        raise ImportError(f"{VARIABLE}: got {package!r}; expected {' or '.join(PACKAGES)}")
    return package


PACKAGE = choose_package()
[OTHER_PACKAGE] = set(PACKAGES) - {PACKAGE}
os.environ[VARIABLE] = PACKAGE  # child processes use the same package

if TYPE_CHECKING or PACKAGE == "pytorch_lightning":
    import pytorch_lightning as pl
    from lightning_fabric.plugins import TorchCheckpointIO
    from lightning_fabric.utilities import move_data_to_device
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from pytorch_lightning import callbacks
    from pytorch_lightning.accelerators import MPSAccelerator
    from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
    from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
    from pytorch_lightning.loggers import Logger, TensorBoardLogger
    from pytorch_lightning.loggers.logger import DummyExperiment  # type: ignore[attr-defined]
    from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry
    from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher
    from pytorch_lightning.trainer.states import TrainerFn
    from pytorch_lightning.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
    from pytorch_lightning.utilities.exceptions import SIGTERMException
else:
    import lightning.pytorch as pl
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.fabric.utilities import move_data_to_device
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import callbacks
    from lightning.pytorch.accelerators import MPSAccelerator
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
    from lightning.pytorch.loggers import Logger, TensorBoardLogger
    from lightning.pytorch.loggers.logger import DummyExperiment
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry
    from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
    from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = [
    "OTHER_PACKAGE",
    "PACKAGE",
    "VARIABLE",
    "Callback",
    "DDPStrategy",
    "DummyExperiment",
    "EarlyStopping",
    "LightningArgumentParser",
    "LightningCLI",
    "LightningModule",
    "Logger",
    "MPSAccelerator",
    "MisconfigurationException",
    "ModelCheckpoint",
    "ProgressBar",
    "SIGTERMException",
    "SaveConfigCallback",
    "SingleDeviceStrategy",
    "StrategyRegistry",
    "TensorBoardLogger",
    "TorchCheckpointIO",
    "TrainerFn",
    "_SubprocessScriptLauncher",
    "callbacks",
    "move_data_to_device",
    "pl",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
]


class LightningModule(pl.LightningModule):
    """Lightning's module; the other package's Trainer refuses it in a line that says why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _explain_refusals()


def _explain_refusals() -> None:
    """Make the other package's Trainer, if it has been imported, say why it refuses a module.

    Its own message, "`model` must be a `LightningModule`", names none of the two packages. All of
    its verbs check their model by one function, which they look up only when they are called.
    """
    other_trainer = sys.modules.get(f"{OTHER_PACKAGE}.trainer.trainer")
    check_model = getattr(other_trainer, "_maybe_unwrap_optimized", None)
    if check_model is None or hasattr(check_model, "__wrapped__"):
        return

    @functools.wraps(check_model)
    def explain_and_check(model: object) -> object:
        if isinstance(model, LightningModule):
            raise TypeError(
                f"model: got a {type(model).__name__} that was made for {PACKAGE}, and a Trainer "
                f"of {OTHER_PACKAGE}: import {OTHER_PACKAGE} before fedaux_pl, or set "
                f"{VARIABLE}={OTHER_PACKAGE}"
            )
        return check_model(model)

    other_trainer._maybe_unwrap_optimized = explain_and_check  # type: ignore[union-attr]
