"""SimCLR whose every batch is shared by several processes, with the result of one."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.data.views import apply_views
from fedaux_pl.functional import nt_xent_loss
from fedaux_pl.modules import SimCLR
from fedaux_pl.modules.selfsupervised import Batch
from fedaux_pl.processes import Processes


class SharedSimCLR(SimCLR):
    """Every process is given the same batch, draws the same views and works on its own part.

    The loss is that of the whole batch: projections are put together before they are compared,
    BatchNorm normalises by the statistics of all, and gradients are averaged after each step. So
    the features do not depend on the number of processes, other than by rounding. With one process
    it is SimCLR.

    Args:
        model: As for SimCLR.
        processes: Those that share the batches.
        options: Further arguments of SimCLR.
    """

    def __init__(self, model: nn.Module, processes: Processes, **options: Any) -> None:
        super().__init__(model, **options)
        self.processes = processes
        self._images = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The NT-Xent loss of the whole batch."""
        with synchronised(self, self.processes):
            return super().training_step(batch, batch_idx)

    def _two_views(self, batch: Batch) -> Tensor:
        images = batch if isinstance(batch, Tensor) else batch[0]
        self._images = len(images)
        own = self.processes.part(self._images)
        height, width = images.shape[-2:]
        drawn = self.views.sample(2 * self._images, height, width, images.device)
        return apply_views(images[own], drawn.part(own, views=2))

    def _contrast(self, first: Tensor, second: Tensor) -> Tensor:
        own = self.processes.part(self._images)
        both = torch.cat([first, second], dim=1)
        first, second = together(both, own, self._images, self.processes).chunk(2, dim=1)
        return nt_xent_loss(first, second, self.temperature)

    def on_after_backward(self) -> None:
        """Averages the gradients, each process having those of its part."""
        trained = [parameter for parameter in self.parameters() if parameter.grad is not None]
        sums = self.processes.sum([parameter.grad for parameter in trained])  # type: ignore[misc]
        for parameter, total in zip(trained, sums, strict=True):
            parameter.grad = total / self.processes.world_size


def together(own: Tensor, where: slice, count: int, processes: Processes) -> Tensor:
    """Rows of all processes, of which this one has those at ``where``; gradients find the way back.

    Parts may differ in size and may be empty. Everyone who uses the result adds to the gradient of
    a row: one loss that all of them compute reaches it ``world_size`` times.
    """
    if processes.world_size == 1:
        return own
    padding = [0, 0] * (own.ndim - 1) + [where.start, count - where.stop]
    padded = nn.functional.pad(own, padding)
    everyone: Tensor = all_reduce(padded)  # type: ignore[no-untyped-call]
    return everyone


@contextmanager
def synchronised(module: nn.Module, processes: Processes) -> Iterator[None]:
    """Lets BatchNorm normalise by the statistics of all processes' samples.

    Unlike torch's SyncBatchNorm it works on the CPU, and with processes that have no sample.
    """
    alone = processes.world_size == 1
    layers = [] if alone else [x for x in module.modules() if isinstance(x, _BatchNorm)]
    for layer in layers:
        layer.forward = functools.partial(_normalise, layer, processes)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]  # the class's own is there again


def _normalise(layer: _BatchNorm, processes: Processes, x: Tensor) -> Tensor:
    """A training step of BatchNorm, whatever the mode; see ``torch.nn.BatchNorm2d``."""
    with torch.autocast(x.device.type, enabled=False):
        wide = x.transpose(0, 1).flatten(1).float()  # one row a channel
        mean, variance, count = _statistics(wide, processes)
        _track(layer, mean.detach(), variance.detach() * (count / (count - 1)))
        scale = (variance + layer.eps).rsqrt()
        shift = -mean * scale
        if layer.affine:
            scale, shift = layer.weight * scale, layer.weight * shift + layer.bias
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (x.float() * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _track(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Moves the running statistics of a layer that has any."""
    if layer.running_mean is None or layer.running_var is None:
        return
    assert layer.num_batches_tracked is not None  # noqa: S101 - it comes with the others
    layer.num_batches_tracked.add_(1)
    momentum = layer.momentum
    if momentum is None:  # the mean over all batches
        momentum = 1 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean, momentum)
    layer.running_var.lerp_(variance, momentum)


def _statistics(rows: Tensor, processes: Processes) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each row's entries in all processes, and their number.

    By one reduction and without the cancellation of E[x^2] - E[x]^2 (Chan et al. 1979): each
    process gives its number, means and squared deviations from them.
    """
    channels, number = rows.shape
    mean = rows.sum(dim=1) / max(number, 1)
    deviations = (rows - mean[:, None]).square().sum(dim=1)
    given = torch.cat([mean.new_full((1,), number), mean, deviations])[None]
    rank, size = processes.rank, processes.world_size
    everyone = together(given, slice(rank, rank + 1), size, processes)
    counts, means, spreads = torch.split(everyone, [1, channels, channels], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count
    variance = (spreads + counts * (means - mean).square()).sum(dim=0) / count
    return mean, variance, count
