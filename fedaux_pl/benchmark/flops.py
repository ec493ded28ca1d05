"""Floating-point operations of models, and the peak rate of a device."""

import copy
import time
from collections.abc import Callable, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedaux_pl.engine import isolated_rng

_COPIES = 2  # of each sample: BatchNorm cannot normalize a single one


def training_flops(module: pl.LightningModule, batch: Sequence[Tensor]) -> float:
    """Return the mean FLOPs of a training step per sample, forward and backward.

    Each sample is counted in a batch of copies of itself, so that no padding to a longer text
    counts. Matrix products and convolutions are counted, with two operations per multiply-add; on
    the CPU, where all of them are operators of PyTorch that its counter sees.
    """
    trial = copy.deepcopy(module).cpu().train()
    batch = [tensor.cpu() for tensor in batch]

    def step() -> None:
        for sample in zip(*batch, strict=True):
            copies = [tensor.expand(_COPIES, *tensor.shape) for tensor in sample]
            loss = trial.training_step(copies, 0)
            assert isinstance(loss, Tensor)  # noqa: S101 - all modules of a stage return it
            loss.backward()  # type: ignore[no-untyped-call]

    return _count(step) / (_COPIES * len(batch[0]))


def forward_flops(model: nn.Module, inputs: Tensor) -> float:
    """Return the mean FLOPs of a prediction per sample, without padding."""
    trial, inputs = copy.deepcopy(model).cpu().eval(), inputs.cpu()
    with torch.no_grad():
        return _count(lambda: [trial(row[None]) for row in inputs]) / len(inputs)


def _count(function: Callable[[], object]) -> int:
    # counting must not advance the random numbers of the process
    with isolated_rng(0), FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def matmul_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, int]:
    """Return the best FLOP/s of a product of square matrices, and their size."""
    size = 8192 if device.type == "cuda" else 1024  # large enough to saturate the device
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    repetitions, best = 4, float("inf")
    for _ in range(8):  # the first ones are the warm-up
        start = now(device)
        for _ in range(repetitions):
            torch.mm(a, b)
        best = min(best, (now(device) - start) / repetitions)
    return 2 * size**3 / best, size


def now(device: torch.device) -> float:
    """Return the time in seconds, after all kernels on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
