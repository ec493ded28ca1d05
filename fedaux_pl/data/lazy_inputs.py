"""Inputs in host memory or in files, read batch by batch and indexed as a tensor on the device."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

Memory = Literal["device", "host", "disk"]
"""Where inputs stay: on the device, in host memory, or in the files that they are read from."""
Index = Tensor | slice

_AHEAD = 2  # batches that are read before they are needed
_CHUNK_BYTES = 1 << 24


class Reader(Protocol):
    """Reads some of N samples; ``shape`` is that of all of them. It may be called by threads."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, ...)."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the samples."""

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the samples at these positions, on the CPU."""


class TensorReader:
    """Reads a tensor in host memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), tensor.dtype

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the samples at these positions."""
        return self.tensor[torch.from_numpy(rows)]


class LazyInputs:
    """Samples that a reader reads when they are indexed; the result is a tensor on the device.

    It has the attributes of a tensor that the package uses for inputs: ``shape``, ``dtype``,
    ``device`` and so on. Batches have the values that a tensor in memory would give.

    Args:
        reader: Reads samples.
        rows: The positions of the samples to use; None for all.
        device: The device of what is read.

    Example:
        >>> import torch
        >>> inputs = LazyInputs(TensorReader(torch.arange(6).reshape(3, 2)))
        >>> inputs.shape, inputs.select(torch.tensor([2, 0]))[:1]
        (torch.Size([3, 2]), tensor([[4, 5]]))
    """

    def __init__(
        self,
        reader: Reader,
        rows: NDArray[np.int64] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.reader, self.device = reader, torch.device(device)
        self._rows = np.arange(reader.shape[0]) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        """The shape of all samples."""
        return torch.Size((len(self), *self.reader.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the samples."""
        return self.reader.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_cuda(self) -> bool:
        """Whether samples are read to a CUDA device."""
        return self.device.type == "cuda"

    def is_floating_point(self) -> bool:
        """Return whether the samples are floats."""
        return self.dtype.is_floating_point

    def to(self, device: torch.device | str) -> "LazyInputs":
        """Return the same samples, read to another device."""
        return LazyInputs(self.reader, self._rows, device)

    def select(self, index: Index) -> "LazyInputs":
        """Return some of the samples, without reading them."""
        return LazyInputs(self.reader, self._where(index), self.device)

    def _where(self, index: int | Index | NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self._rows[index.cpu().numpy() if isinstance(index, Tensor) else index])

    def __getitem__(self, index: int | Index | NDArray[np.int64]) -> Tensor:
        rows = self._where(index)
        batch = self._read(rows.reshape(-1)).to(self.device)
        return batch.reshape(*rows.shape, *self.shape[1:])

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the samples at these positions, on the CPU."""
        return self.reader.read(self._rows[rows])

    def batches(self, positions: Iterable[Index]) -> Iterator[Tensor]:
        """Yield the samples at each of the positions; the next ones are read meanwhile."""
        # all at once: a transfer from the device waits for the steps that run there
        rows = [self._where(index) for index in positions]
        ahead: deque[Future[Tensor]] = deque()
        for some in rows:
            ahead.append(_threads().submit(self._read, some))
            if len(ahead) > _AHEAD:
                yield self._deliver(ahead.popleft())
        while ahead:
            yield self._deliver(ahead.popleft())

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        batch = self.reader.read(rows)
        return batch.pin_memory() if self.is_cuda else batch

    def _deliver(self, batch: Future[Tensor]) -> Tensor:
        return batch.result().to(self.device, non_blocking=True)


Inputs = Tensor | LazyInputs


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), "read-inputs")


def read_batches(inputs: Inputs, positions: Iterable[Index]) -> Iterator[Tensor]:
    """Yield the inputs at each of the positions, on their device."""
    if isinstance(inputs, LazyInputs):
        return inputs.batches(positions)
    return (inputs[index] for index in positions)


def select(inputs: Inputs, rows: Index) -> Inputs:
    """Return some of the inputs: a copy of a tensor, or unread."""
    return inputs.select(rows) if isinstance(inputs, LazyInputs) else inputs[rows]


def keep_in_host(inputs: Inputs) -> Inputs:
    """Return images that ``to(device)`` leaves in host memory; others follow the device.

    Token ids are small, and captured steps count them there.
    """
    is_large = isinstance(inputs, Tensor) and inputs.ndim == 4
    return LazyInputs(TensorReader(inputs[:])) if is_large else inputs


def choose_memory(size: int, device: torch.device, processes: int) -> Memory:
    """Choose where ``size`` bytes of images stay, by the memory of the device and the host.

    At most a third of either is used: half of the auxiliary data is there twice, and training
    needs more. ``processes`` of this machine hold them in host memory each.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, processes)
    memory: Memory = "device" if 3 * size <= host else "disk"
    if (
        memory == "device"
        and device.type == "cuda"
        and 3 * size > torch.cuda.mem_get_info(device)[1]
    ):
        memory = "host"
    if memory != "device":
        rank_zero_info(
            f"data.memory: {memory}, because the images take {size / 1e9:.1f} GB (set it to "
            "device, host or disk to choose)"
        )
    return memory


def chunks(inputs: Inputs) -> Iterator[Tensor]:
    """Yield all inputs in order: a tensor at once, others on the CPU in parts of some 16 MB."""
    if isinstance(inputs, Tensor):
        yield inputs
        return
    sample = inputs.shape[1:].numel() * inputs.dtype.itemsize
    size = max(1, _CHUNK_BYTES // sample)
    starts = range(0, len(inputs), size)
    yield from inputs.to("cpu").batches([slice(start, start + size) for start in starts])
