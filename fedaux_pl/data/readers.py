"""Readers of inputs on disk: rows of arrays in files, and pictures that processes decode."""

import multiprocessing
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.images import decode_image
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Reader, TensorReader
from fedaux_pl.errors import DataError

_State = tuple[int, int, int]


def _state(status: os.stat_result) -> _State:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_unchanged(path: Path, status: os.stat_result, expected: _State) -> None:
    if (found := _state(status)) != expected:
        raise DataError(
            f"{path.absolute()} has changed since it was opened, from {expected[1]:,} to "
            f"{found[1]:,} bytes or in its time: leave the data alone while a run reads them, and "
            "start again"
        )


@dataclass(frozen=True)
class ArrayFile:
    """An uncompressed array in a file, of which single rows are read.

    They are read by position and not through a memory map: mapped pages count as resident memory,
    and a file that becomes shorter would kill the process.

    Args:
        path: The file.
        offset: Where the array begins, in bytes.
        array_shape: The shape in the file.
        array_dtype: The dtype in the file.
        convert: Turns rows of the file into inputs, each by itself.
        opened: The inode, size and time of the file, which must not change.
    """

    path: Path
    offset: int
    array_shape: tuple[int, ...]
    array_dtype: np.dtype[Any]
    convert: Callable[[NDArray[Any]], Tensor]
    opened: _State

    @classmethod
    def of_header(
        cls,
        path: Path,
        convert: Callable[[NDArray[Any]], Tensor],
        begin: int = 0,
        end: int | None = None,
    ) -> "ArrayFile":
        """Open the array with a .npy header between two bytes of a file; None for its end.

        Raises:
            DataError: If the array does not fit in between.
            ValueError: If it is no array of numbers in C order.
        """
        with path.open("rb") as file:
            opened = _state(os.fstat(file.fileno()))
            file.seek(begin)
            version = np.lib.format.read_magic(file)
            is_first = version == (1, 0)
            headers = np.lib.format
            read = headers.read_array_header_1_0 if is_first else headers.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
            array = cls(path, file.tell(), shape, dtype, convert, opened)
        if is_fortran or dtype.hasobject or not shape or 0 in shape:
            raise ValueError(f"no numbers in C order, but {dtype} of shape {shape}")
        needed, room = shape[0] * array._row_bytes, (end or opened[1]) - array.offset
        if needed > room:
            raise DataError(
                f"{path.absolute()} is shorter than it says: an array of shape {shape} ({dtype}) "
                f"has {needed:,} bytes, but {room:,} are there: copy or write it again"
            )
        return array

    @classmethod
    def of_memmap(
        cls, array: "np.memmap[Any, Any]", convert: Callable[[NDArray[Any]], Tensor]
    ) -> "ArrayFile":
        """Open the file of a contiguous memory map, or of a part of one."""
        if array.filename is None or not array.flags.c_contiguous:
            raise DataError(
                "a memory map of every second row, or transposed, cannot stay on disk: pass the "
                "map of the whole file, or set memory to host"
            )
        mapped = np.frombuffer(array._mmap, np.uint8)  # type: ignore[attr-defined]
        begin = array.offset - array.offset % ALLOCATIONGRANULARITY
        offset = begin + array.ctypes.data - mapped.ctypes.data
        path = Path(array.filename)
        return cls(path, offset, array.shape, array.dtype, convert, _state(path.stat()))

    @property
    def _row_bytes(self) -> int:
        return int(np.prod(self.array_shape[1:], dtype=np.int64)) * self.array_dtype.itemsize

    @cached_property
    def _first(self) -> Tensor:
        return self.read(np.zeros(1, np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all inputs."""
        return self.array_shape[0], *self._first.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the inputs."""
        return self._first.dtype

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Read rows; neighbors at once."""
        result = np.empty((len(rows), *self.array_shape[1:]), self.array_dtype)
        view, size = result.reshape(-1).view(np.uint8).data, self._row_bytes
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        try:
            with open(self.path, "rb", buffering=0) as file:
                _check_unchanged(self.path, os.fstat(file.fileno()), self.opened)
                for start, end in zip([0, *breaks], [*breaks, len(rows)], strict=True):
                    part = view[start * size : end * size]
                    _fill(file.fileno(), self.offset + int(rows[start]) * size, part)
        except OSError as error:
            raise DataError(f"{self.path.absolute()} cannot be read anymore: {error}") from error
        return self.convert(result)


def _fill(file: int, offset: int, view: memoryview) -> None:
    """Read a part of a file; one call reads at most 2 GiB."""
    while len(view):
        count = os.preadv(file, [view], offset)
        if not count:
            raise OSError("it has become shorter")
        offset, view = offset + count, view[count:]


class PictureFiles:
    """Picture files that worker processes decode when they are read.

    Args:
        files: The files.
        size: The height and width of the result.
        channels: 3 for color, 1 for gray.
    """

    def __init__(self, files: Sequence[Path], size: int, channels: int) -> None:
        self._files, self._size, self._channels = list(files), size, channels
        self._opened = [_state(file.stat()) for file in files]
        self.shape, self.dtype = (len(self._files), channels, size, size), torch.uint8

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Decode pictures, in all worker processes."""
        parts = [part.tolist() for part in np.array_split(rows, _num_workers()) if len(part)]
        some = [[(self._files[row], self._opened[row]) for row in part] for part in parts]
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads; the workers only decode
            warnings.simplefilter("ignore", DeprecationWarning)
            futures = [_workers().submit(_decode, p, self._size, self._channels) for p in some]
        return torch.from_numpy(np.concatenate([future.result() for future in futures]))


def _decode(files: Sequence[tuple[Path, _State]], size: int, channels: int) -> NDArray[np.uint8]:
    pictures = np.empty((len(files), channels, size, size), np.uint8)
    for picture, (file, opened) in zip(pictures, files, strict=True):
        picture[:] = decode_image(file, size, channels).numpy()
        _check_unchanged(file, file.stat(), opened)
    return pictures


def _num_workers() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _workers() -> ProcessPoolExecutor:
    # fork, as DataLoaders: other methods import the program again, which needs a guard there
    context = multiprocessing.get_context("fork")
    # one thread: OpenMP's threads do not survive a fork
    return ProcessPoolExecutor(_num_workers(), context, torch.set_num_threads, (1,))


class JoinedReader:
    """Reads several readers as one, their samples one after the other."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self._ends = np.cumsum([reader.shape[0] for reader in readers])
        self.shape = (int(self._ends[-1]), *readers[0].shape[1:])
        self.dtype: torch.dtype = readers[0].dtype

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Read from each reader its samples."""
        result = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners):
            where, reader = np.flatnonzero(owners == number), self._readers[number]
            own = rows[where] - (self._ends[number] - reader.shape[0])
            result[torch.from_numpy(where)] = reader.read(own)
        return result


def join_inputs(parts: Sequence[Inputs]) -> Inputs:
    """Return the inputs of several data sets as one; unread if one of them is."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    readers = [TensorReader(p) if isinstance(p, Tensor) else p for p in parts]
    return LazyInputs(JoinedReader(readers))
