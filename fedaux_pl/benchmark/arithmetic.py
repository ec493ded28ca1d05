"""How much arithmetic there is to do, and how fast the device does it at best."""

import copy
import time
from collections.abc import Callable, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedaux_pl.engine import isolated_rng

# Large enough to keep the device busy, small enough to be over in a moment.
_SIZES = {"cuda": 8192, "cpu": 1024}
_ALIKE = 2  # BatchNorm cannot normalise a single sample


def training_flops(module: pl.LightningModule, batch: Sequence[Tensor]) -> float:
    """Floating-point operations of a step, forward and backward, for each sample of the batch.

    Each sample is counted in a batch of its own kind, so that no text counts the padding that a
    longer one beside it asks for. Counted are matrix products and convolutions, a multiplication
    and an addition as two; on the CPU, where all of them are PyTorch's own and none is hidden in a
    kernel of ours or cuDNN's.
    """
    trial = copy.deepcopy(module).cpu().train()
    batch = [tensor.cpu() for tensor in batch]

    def step() -> None:
        for sample in zip(*batch, strict=True):
            alike = [tensor.expand(_ALIKE, *tensor.shape) for tensor in sample]
            loss = trial.training_step(alike, 0)
            assert isinstance(loss, Tensor)  # noqa: S101 - all modules of a stage return it
            loss.backward()  # type: ignore[no-untyped-call]

    return _count(step) / (_ALIKE * len(batch[0]))


def forward_flops(model: nn.Module, inputs: Tensor) -> float:
    """Floating-point operations of a prediction, for each sample, none of them for padding."""
    trial, inputs = copy.deepcopy(model).cpu().eval(), inputs.cpu()
    with torch.no_grad():
        return _count(lambda: [trial(row[None]) for row in inputs]) / len(inputs)


def _count(function: Callable[[], object]) -> int:
    # a counter may run in a process whose random numbers are not its own
    with isolated_rng(0), FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def matmul_peak(device: torch.device, dtype: torch.dtype) -> tuple[float, int]:
    """The operations a second of the largest of several products of square matrices, and its size.

    Args:
        device: Where.
        dtype: Of the matrices.
    """
    size = _SIZES.get(device.type, _SIZES["cpu"])
    generator = torch.Generator(device).manual_seed(0)
    one, other = (
        torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2)
    )
    repetitions, best = 4, float("inf")
    for _ in range(8):  # the first of them warm up: the best counts
        synchronize(device)
        start = time.perf_counter()
        for _ in range(repetitions):
            torch.mm(one, other)
        synchronize(device)
        best = min(best, (time.perf_counter() - start) / repetitions)
    return 2 * size**3 / best, size


def synchronize(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
