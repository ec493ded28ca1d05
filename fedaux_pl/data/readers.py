"""Readers of inputs on disk: rows of arrays in files, and pictures that processes decode."""

import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.images import decode_image, find_readable, load_images
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Rows
from fedaux_pl.errors import DataError

Convert = Callable[[NDArray[Any]], Tensor]
"""Turns rows of an array into inputs, each row by itself."""
_State = tuple[int, int, int]


def _state(status: os.stat_result) -> _State:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_unchanged(path: Path, status: os.stat_result, opened: _State) -> None:
    if (found := _state(status)) != opened:
        raise DataError(
            f"{path.absolute()} has changed since it was opened, from {opened[1]:,} to "
            f"{found[1]:,} bytes or in its time: leave the data alone while a run reads them, and "
            "start again"
        )


class ArrayFile:
    """An uncompressed array in a file, after its .npy header, of which single rows are read.

    They are read by position and not through a memory map: mapped pages count as resident memory,
    and a file that becomes shorter would kill the process.

    Args:
        path: The file.
        convert: See :data:`Convert`.
        begin: The first byte of the header.
        end: The first byte after the array; None for that after the file.

    Raises:
        DataError: If the array does not fit in between.
        ValueError: If it is no array of numbers in C order.
    """

    def __init__(
        self, path: Path, convert: Convert, begin: int = 0, end: int | None = None
    ) -> None:
        self.path, self._convert, form = path, convert, np.lib.format
        with path.open("rb") as file:
            self._opened = _state(os.fstat(file.fileno()))
            file.seek(begin)
            is_old = form.read_magic(file) == (1, 0)
            read = form.read_array_header_1_0 if is_old else form.read_array_header_2_0
            self.array_shape, is_fortran, self.array_dtype = read(file)
            self._offset = file.tell()
        kind = f"{self.array_dtype} of shape {self.array_shape}"
        if is_fortran or self.array_dtype.hasobject or not math.prod(self.array_shape):
            raise ValueError(f"expected numbers in C order, but got {kind}")
        self._row_bytes = math.prod(self.array_shape[1:]) * self.array_dtype.itemsize
        needed, room = (
            self.array_shape[0] * self._row_bytes,
            (end or self._opened[1]) - self._offset,
        )
        if needed > room:
            raise DataError(
                f"{path.absolute()} is shorter than it says: its array ({kind}) has {needed:,} "
                f"bytes, but {room:,} are there: copy or write it again"
            )
        first = self.read(np.zeros(1, np.int64))
        self.shape, self.dtype = (self.array_shape[0], *first.shape[1:]), first.dtype

    def read(self, rows: Rows) -> Tensor:
        """Read rows; neighbors at once."""
        result = np.empty((len(rows), *self.array_shape[1:]), self.array_dtype)
        view, size = result.reshape(-1).view(np.uint8).data, self._row_bytes
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        try:
            with open(self.path, "rb", buffering=0) as file:
                _check_unchanged(self.path, os.fstat(file.fileno()), self._opened)
                for start, end in zip([0, *breaks], [*breaks, len(rows)], strict=True):
                    part = view[start * size : end * size]
                    _fill(file.fileno(), self._offset + int(rows[start]) * size, part)
        except OSError as error:
            raise DataError(f"{self.path.absolute()} cannot be read anymore: {error}") from error
        return self._convert(result)


def _fill(file: int, offset: int, view: memoryview) -> None:
    """Read a part of a file; one call reads at most 2 GiB."""
    while len(view):
        if not (count := os.preadv(file, [view], offset)):
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
        self._files, self._form = [(file, _state(file.stat())) for file in files], (size, channels)
        self.shape: tuple[int, ...] = (len(files), channels, size, size)
        self.dtype = torch.uint8

    def read(self, rows: Rows) -> Tensor:
        """Decode pictures, in all worker processes."""
        parts = [part.tolist() for part in np.array_split(rows, _num_workers()) if len(part)]
        some = [[self._files[row] for row in part] for part in parts]
        futures = [_workers().submit(_decode, files, *self._form) for files in some]
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


def open_images(
    files: list[Path],
    root: Path,
    size: int,
    channels: int,
    cache_dir: Path | None,
    *,
    skip: bool = False,
    on_disk: bool = False,
) -> tuple[Inputs, list[int]]:
    """Return ``load_images`` or, with ``on_disk``, pictures that are decoded when they are read."""
    if not on_disk:
        return load_images(files, root, size, channels, cache_dir, skip)
    everything = list(range(len(files)))
    positions = find_readable(files, root, size, channels) if skip else everything
    return LazyInputs(PictureFiles([files[i] for i in positions], size, channels)), positions
