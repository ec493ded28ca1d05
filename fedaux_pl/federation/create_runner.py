"""The choice of the stage runner: the only file that imports ``fedaux_pl.accelerate``."""

import logging
from importlib.util import find_spec

import pytorch_lightning as pl

from fedaux_pl.engine import StageRunner

_log = logging.getLogger(__name__)


def create_runner(trainer: pl.Trainer) -> StageRunner:
    """Create the stage runner for a Trainer's device: the accelerated one on CUDA.

    Without the folder ``fedaux_pl/accelerate`` CUDA runs plain PyTorch. Without triton it captures
    CUDA graphs of PyTorch's own kernels. Either is slower, and the log says so.
    """
    if trainer.strategy.root_device.type != "cuda":
        return StageRunner(trainer)
    accelerate = find_spec("fedaux_pl.accelerate")
    if accelerate is None or accelerate.origin is None:  # no folder, or one without __init__.py
        _log.info("CUDA runs plain PyTorch, which is slower: fedaux_pl.accelerate is missing")
        return StageRunner(trainer)
    if find_spec("triton") is None:
        _log.info("CUDA runs PyTorch's own kernels, which are slower: triton is not installed")
    from fedaux_pl.accelerate import CudaRunner

    return CudaRunner(trainer)
