"""The choice of the stage runner: the only file that imports ``fedaux_pl.accelerate``."""

import logging
import os
from importlib.util import find_spec
from typing import Literal, get_args

from fedaux_pl.engine import StageRunner
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.lightning import pl

Acceleration = Literal["auto", "off"]
_VARIABLE = "FEDAUX_PL_ACCELERATION"
_log = logging.getLogger(__name__)


def create_runner(trainer: pl.Trainer, acceleration: Acceleration = "auto") -> StageRunner:
    """Create the stage runner for a Trainer's device: the accelerated one on CUDA.

    CUDA runs plain PyTorch if ``acceleration`` or FEDAUX_PL_ACCELERATION is ``off``, or without the
    folder ``fedaux_pl/accelerate``. Without triton it captures CUDA graphs of PyTorch's own
    kernels. Each of these is slower, and the log says so.
    """
    if trainer.strategy.root_device.type != "cuda":
        return StageRunner(trainer)
    variable = os.environ.get(_VARIABLE, "auto")
    if variable not in get_args(Acceleration):
        raise ConfigurationError(
            f"the environment variable {_VARIABLE}: got {variable!r}; expected auto or off"
        )
    if "off" in (acceleration, variable):
        _log.info("CUDA runs plain PyTorch, which is slower: acceleration is off")
        return StageRunner(trainer)
    accelerate = find_spec("fedaux_pl.accelerate")
    if accelerate is None or accelerate.origin is None:  # no folder, or one without __init__.py
        _log.info("CUDA runs plain PyTorch, which is slower: fedaux_pl.accelerate is missing")
        return StageRunner(trainer)
    if find_spec("triton") is None:
        _log.info("CUDA runs PyTorch's own kernels, which are slower: triton is not installed")
    from fedaux_pl.accelerate import CudaRunner

    return CudaRunner(trainer)
