"""Training steps over several processes: gathered rows, joint BatchNorm, averaged gradients."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.processes import Processes


def current_processes() -> Processes:
    """Return the processes of torch's default group; this process alone if there is no group."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


def gather_rows(rows: Tensor, count: int, processes: Processes) -> Tensor:
    """Concatenate the rows of all processes, shape (count, ...), with gradients.

    A row gets a gradient from the loss of every process. If all compute the same loss, gradients
    are ``world_size`` times too large until they are averaged over the processes, as DDP and
    ``average_gradients`` do. ``rows`` are those of ``processes.part(count)``; there may be none.
    """
    if processes.world_size == 1:
        return rows
    local = processes.part(count)
    # A sum of zero-padded rows, because all_gather requires parts of equal size.
    padding = [0, 0] * (rows.ndim - 1) + [local.start, count - local.stop]
    total: Tensor = all_reduce(nn.functional.pad(rows, padding))  # type: ignore[no-untyped-call]
    return total


def average_gradients(module: nn.Module, processes: Processes) -> None:
    """Replace the gradients of a module by their means over all processes."""
    if processes.world_size == 1:
        return
    parameters = [parameter for parameter in module.parameters() if parameter.grad is not None]
    sums = processes.sum([parameter.grad for parameter in parameters])  # type: ignore[misc]
    for parameter, total in zip(parameters, sums, strict=True):
        parameter.grad = total / processes.world_size


@contextmanager
def synchronized_batch_norm(module: nn.Module, processes: Processes) -> Iterator[None]:
    """Make BatchNorm layers normalize by the statistics of all processes.

    Unlike torch's SyncBatchNorm it runs on the CPU, and with processes that have no samples.
    """
    layers = []
    if processes.world_size > 1:
        layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    for layer in layers:
        layer.forward = functools.partial(_normalize, layer, processes)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]  # restores the forward of the class


def _normalize(layer: _BatchNorm, processes: Processes, x: Tensor) -> Tensor:
    """BatchNorm in training mode, whatever the layer's mode; see ``torch.nn.BatchNorm2d``."""
    with torch.autocast(x.device.type, enabled=False):
        channels = x.transpose(0, 1).flatten(1).float()  # one row per channel
        mean, variance, count = _statistics(channels, processes)
        _update_running_statistics(layer, mean.detach(), variance.detach() * (count / (count - 1)))
        scale = (variance + layer.eps).rsqrt()
        shift = -mean * scale
        if layer.affine:
            scale = layer.weight * scale
            shift = layer.weight * shift + layer.bias
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (x.float() * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _update_running_statistics(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if layer.running_mean is None or layer.running_var is None:
        return
    assert layer.num_batches_tracked is not None  # noqa: S101 - exists if the others do
    layer.num_batches_tracked.add_(1)
    momentum = layer.momentum
    if momentum is None:  # cumulative average
        momentum = 1 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean, momentum)
    layer.running_var.lerp_(variance, momentum)


def _statistics(rows: Tensor, processes: Processes) -> tuple[Tensor, Tensor, Tensor]:
    """The mean and variance of each row over all processes, and the number of entries of a row.

    Counts, means and squared deviations (Chan et al. 1979) avoid the cancellation of
    E[x^2] - E[x]^2.
    """
    channels, count = rows.shape
    local_mean = rows.sum(dim=1) / max(count, 1)
    local_squares = (rows - local_mean[:, None]).square().sum(dim=1)
    local = torch.cat([local_mean.new_full((1,), count), local_mean, local_squares])[None]
    gathered = gather_rows(local, processes.world_size, processes)
    counts, means, squares = torch.split(gathered, [1, channels, channels], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total
    variance = (squares + counts * (means - mean).square()).sum(dim=0) / total
    return mean, variance, total
