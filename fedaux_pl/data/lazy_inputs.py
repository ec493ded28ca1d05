"""Inputs that stay in host memory or in files, and are read batch by batch to the device."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.lightning import rank_zero_info

Memory = Literal["device", "host", "disk"]
"""Where inputs stay: on the device, in host memory, or in the files that they are read from."""
Index = Tensor | slice
Rows = NDArray[np.int64]

_BATCHES_AHEAD = 2  # that are read before they are needed
_CHUNK_BYTES = 1 << 24


class LazyInputs:
    """Samples that are read when they are indexed, as a tensor on the device.

    It has those attributes of a tensor that the package uses for inputs.

    Args:
        read: Returns the samples at some positions, on the CPU. Several threads may call it.
        shape: The shape of all samples that ``read`` can return; the first dimension counts them.
        dtype: The dtype of the samples.
        rows: The positions of the samples to use, in their order; None for all.
        device: The device of the tensors that indexing returns.
    """

    def __init__(
        self,
        read: Callable[[Rows], Tensor],
        shape: Sequence[int],
        dtype: torch.dtype,
        rows: Rows | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._read_rows = read
        self._rows = np.arange(shape[0]) if rows is None else rows
        self.shape: tuple[int, ...] = (len(self._rows), *shape[1:])
        self.ndim = len(self.shape)
        self.dtype = dtype
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"

    def __len__(self) -> int:
        return len(self._rows)

    def is_floating_point(self) -> bool:
        """Return whether the samples are floats."""
        return self.dtype.is_floating_point

    def to(self, device: torch.device | str) -> "LazyInputs":
        """Return the same samples, which indexing then reads to another device."""
        return LazyInputs(self._read_rows, self.shape, self.dtype, self._rows, device)

    def select(self, index: Index) -> "LazyInputs":
        """Return some of the samples, without reading them."""
        rows = self.where(index)
        return LazyInputs(self._read_rows, self.shape, self.dtype, rows, self.device)

    def __getitem__(self, index: int | Index | Rows) -> Tensor:
        rows = self.where(index)
        batch = self.read(rows.reshape(-1)).to(self.device)
        return batch.reshape(*rows.shape, *self.shape[1:])

    def where(self, index: int | Index | Rows) -> Rows:
        """Return the positions at which ``read`` finds the samples with some index."""
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        return np.asarray(self._rows[index])

    def read(self, rows: Rows) -> Tensor:
        """Read the samples at positions that ``where`` has returned, on the CPU."""
        batch = self._read_rows(rows)
        return batch.pin_memory() if self.is_cuda else batch


Inputs = Tensor | LazyInputs


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), "read-inputs")


def read_batches(inputs: Inputs, positions: Iterable[Index]) -> Iterator[Tensor]:
    """Yield the inputs of each batch on their device; threads read the next batches meanwhile."""
    if isinstance(inputs, Tensor):
        yield from (inputs[index] for index in positions)
        return
    # all positions at once, because each transfer from the device waits for the steps there
    rows = deque(inputs.where(index) for index in positions)
    ahead: deque[Future[Tensor]] = deque()
    while rows or ahead:
        while rows and len(ahead) <= _BATCHES_AHEAD:
            ahead.append(_threads().submit(inputs.read, rows.popleft()))
        yield ahead.popleft().result().to(inputs.device, non_blocking=True)


def select(inputs: Inputs, rows: Index) -> Inputs:
    """Return some of the inputs: a copy of a tensor's rows, or LazyInputs that are not read."""
    return inputs.select(rows) if isinstance(inputs, LazyInputs) else inputs[rows]


def join_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Join the inputs of several data sets; the result is LazyInputs if one of them is."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat(tensors) if len(tensors) == len(parts) else read_later(*parts)


def read_later(*parts: Inputs) -> LazyInputs:
    """Join inputs in host memory or on disk as LazyInputs."""
    starts = np.cumsum([0, *map(len, parts)])
    shape = parts[0].shape[1:]
    dtype = parts[0].dtype

    def read(rows: Rows) -> Tensor:
        result = torch.empty((len(rows), *shape), dtype=dtype)
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers):
            positions = np.flatnonzero(numbers == number)
            rows_of_part = torch.from_numpy(rows[positions] - starts[number])
            result[torch.from_numpy(positions)] = parts[number][rows_of_part]
        return result

    return LazyInputs(read, (int(starts[-1]), *shape), dtype)


def keep_in_host(inputs: Inputs) -> Inputs:
    """Keep images in host memory also after ``to(device)``; token ids are small and may move."""
    is_large = isinstance(inputs, Tensor) and inputs.ndim == 4
    return read_later(inputs) if is_large else inputs


def chunks(inputs: Inputs) -> Iterator[Tensor]:
    """Yield all inputs in order: a tensor at once, LazyInputs on the CPU in parts of 16 MB."""
    if isinstance(inputs, Tensor):
        return iter([inputs])
    size = max(1, _CHUNK_BYTES // (math.prod(inputs.shape[1:]) * inputs.dtype.itemsize))
    starts = range(0, len(inputs), size)
    return read_batches(inputs.to("cpu"), [slice(start, start + size) for start in starts])


def choose_memory(size: int, device: torch.device, processes: int) -> Memory:
    """Choose where images stay, by the memory of the device and of the host.

    Images may take a third of the memory, because auxiliary images are stored twice and training
    needs memory, too.

    Args:
        size: The bytes of all images.
        device: The device on which models train.
        processes: The number of processes on this machine; each holds all images in host memory.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, processes)
    if 3 * size > host:
        memory: Memory = "disk"
    elif device.type == "cuda" and 3 * size > torch.cuda.mem_get_info(device)[1]:
        memory = "host"
    else:
        return "device"
    rank_zero_info(
        f"data.memory: {memory}, because images take {size / 1e9:.1f} GB (to choose, set it to "
        "device, host or disk)"
    )
    return memory
