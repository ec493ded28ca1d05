"""Inputs in host memory or in files, read batch by batch and indexed as a tensor on the device."""

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

_AHEAD = 2  # batches that are read before they are needed
_CHUNK_BYTES = 1 << 24


class LazyInputs:
    """Samples that are read when they are indexed; the result is a tensor on the device.

    It has the attributes of a tensor that the package uses for inputs. ``read``, which threads may
    call, returns the samples at some positions on the CPU; ``shape`` is that of all of them.
    ``rows`` are the positions of the samples to use; None for all.
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
        """Return the same samples, read to another device."""
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
        """Return the positions of some of the samples in all that can be read."""
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        return np.asarray(self._rows[index])

    def read(self, rows: Rows) -> Tensor:
        """Read the samples at such positions, on the CPU."""
        batch = self._read_rows(rows)
        return batch.pin_memory() if self.is_cuda else batch


Inputs = Tensor | LazyInputs


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), "read-inputs")


def read_batches(inputs: Inputs, positions: Iterable[Index]) -> Iterator[Tensor]:
    """Yield the inputs at each of the positions, on their device; the next are read meanwhile."""
    if isinstance(inputs, Tensor):
        yield from (inputs[index] for index in positions)
        return
    # all at once: a transfer from the device waits for the steps that run there
    rows = deque(inputs.where(index) for index in positions)
    ahead: deque[Future[Tensor]] = deque()
    while rows or ahead:
        while rows and len(ahead) <= _AHEAD:
            ahead.append(_threads().submit(inputs.read, rows.popleft()))
        yield ahead.popleft().result().to(inputs.device, non_blocking=True)


def select(inputs: Inputs, rows: Index) -> Inputs:
    """Return some of the inputs: a copy of a tensor, or unread."""
    return inputs.select(rows) if isinstance(inputs, LazyInputs) else inputs[rows]


def join_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Return the inputs of several data sets as one; unread if one of them is."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat(tensors) if len(tensors) == len(parts) else read_later(*parts)


def read_later(*parts: Inputs) -> LazyInputs:
    """Return inputs in host memory or on disk as one, which is read batch by batch."""
    starts = np.cumsum([0, *map(len, parts)])
    shape = parts[0].shape[1:]
    dtype = parts[0].dtype

    def read(rows: Rows) -> Tensor:
        result = torch.empty((len(rows), *shape), dtype=dtype)
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers):
            where = np.flatnonzero(numbers == number)
            chosen = torch.from_numpy(rows[where] - starts[number])
            result[torch.from_numpy(where)] = parts[number][chosen]
        return result

    return LazyInputs(read, (int(starts[-1]), *shape), dtype)


def keep_in_host(inputs: Inputs) -> Inputs:
    """Return images that ``to(device)`` leaves in host memory; token ids, small, follow it."""
    is_large = isinstance(inputs, Tensor) and inputs.ndim == 4
    return read_later(inputs) if is_large else inputs


def chunks(inputs: Inputs) -> Iterator[Tensor]:
    """Yield all inputs in order: a tensor at once, others on the CPU in parts of some 16 MB."""
    if isinstance(inputs, Tensor):
        return iter([inputs])
    size = max(1, _CHUNK_BYTES // (math.prod(inputs.shape[1:]) * inputs.dtype.itemsize))
    starts = range(0, len(inputs), size)
    return read_batches(inputs.to("cpu"), [slice(start, start + size) for start in starts])


def choose_memory(size: int, device: torch.device, processes: int) -> Memory:
    """Choose where ``size`` bytes of images stay, by the memory of the device and the host.

    They may take a third of it: auxiliary images are there twice, and training needs more.
    ``processes`` of this machine hold them in host memory each.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, processes)
    if 3 * size > host:
        memory: Memory = "disk"
    elif device.type == "cuda" and 3 * size > torch.cuda.mem_get_info(device)[1]:
        memory = "host"
    else:
        return "device"
    choose = "set it to device, host or disk to choose"
    rank_zero_info(f"data.memory: {memory}, as images take {size / 1e9:.1f} GB ({choose})")
    return memory
