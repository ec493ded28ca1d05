"""Readers of inputs on disk: rows of arrays in files, and pictures that processes decode."""

import math
import multiprocessing
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.cache import cached, fingerprint, is_off
from fedaux_pl.data.images import decode_image, decode_images
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Rows
from fedaux_pl.errors import DataError
from fedaux_pl.files import user_cache, write_text_atomically

Convert = Callable[[NDArray[Any]], Tensor]
"""Turns rows of an array into inputs, each row by itself."""
_State = tuple[int, int, int]
_NAMES_IN_WARNING = 5


def _state(file: Path | int) -> _State:
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_unchanged(path: Path, found: _State, opened: _State) -> None:
    if found != opened:
        raise DataError(
            f"{path.absolute()} has changed since it was opened, from {opened[1]:,} to "
            f"{found[1]:,} bytes or in its time: leave the data alone while a run reads them"
        )


class ArrayFile:
    """An uncompressed array in a file, of which single rows are read.

    Its .npy header is at ``begin``; it ends before ``end``, by default that of the file. Rows are
    read by position and not through a memory map: mapped pages count as resident memory, and a file
    that becomes shorter would kill the process.
    """

    def __init__(
        self, path: Path, convert: Convert, begin: int = 0, end: int | None = None
    ) -> None:
        self.path, self._convert, form = path, convert, np.lib.format
        with path.open("rb") as file:
            self._opened = _state(file.fileno())
            file.seek(begin)
            is_old = form.read_magic(file) == (1, 0)
            read = form.read_array_header_1_0 if is_old else form.read_array_header_2_0
            self.array_shape, is_fortran, self.array_dtype = read(file)
            self._offset = file.tell()
        kind = f"{self.array_dtype} of shape {self.array_shape}"
        if is_fortran or self.array_dtype.hasobject or not math.prod(self.array_shape):
            raise ValueError(f"expected numbers in C order, but got {kind}")
        self._row_bytes = math.prod(self.array_shape[1:]) * self.array_dtype.itemsize
        needed = self.array_shape[0] * self._row_bytes
        if needed > (room := (end or self._opened[1]) - self._offset):
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
                _check_unchanged(self.path, _state(file.fileno()), self._opened)
                for start, end in zip([0, *breaks], [*breaks, len(rows)], strict=True):
                    offset, part = int(rows[start]) * size, view[start * size : end * size]
                    while len(part):  # one call reads at most 2 GiB
                        if not (count := os.preadv(file.fileno(), [part], self._offset + offset)):
                            raise OSError("it has become shorter")
                        offset, part = offset + count, part[count:]
        except OSError as error:
            raise DataError(f"{self.path.absolute()} cannot be read anymore: {error}") from error
        return self._convert(result)


class PictureFiles:
    """Picture files that worker processes decode when they are read."""

    def __init__(self, files: Sequence[Path], size: int, channels: int) -> None:
        self._files, self._form = [(file, _state(file)) for file in files], (size, channels)
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
        _check_unchanged(file, _state(file), opened)
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
    """Decode image files to squares, or load them from the cache.

    With ``on_disk`` pictures are decoded when they are read. With ``skip`` files that cannot be
    read are left out, and a warning names them.

    Returns:
        The images, uint8 of shape (N, channels, size, size), and their positions in ``files``.
    """

    def build() -> dict[str, Tensor]:
        images, failures = decode_images(files, size, channels, skip)
        kept = torch.tensor(readable(failures))
        return {"images": images[kept], "positions": kept} if skip else {"images": images}

    def readable(failures: Mapping[int, str]) -> list[int]:
        if failures and len(failures) == len(files):
            raise DataError(f"no image file in {root.absolute()} can be read: {failures[0]}")
        return [i for i in range(len(files)) if i not in failures]

    folder = cache_dir or user_cache()
    if on_disk:
        # a single pixel of each tells whether they can be read
        positions = readable(decode_images(files, 1, channels, skip)[1] if skip else {})
        images: Inputs = LazyInputs(PictureFiles([files[i] for i in positions], size, channels))
    else:
        # the names of the entries are part of the cache key: do not rename them
        key: dict[str, str | int] = {"kind": "files", "root": str(root.absolute()), "size": size}
        key |= {"channels": channels, "files": fingerprint(files)}
        key |= {"on_error": "skip"} if skip else {}
        tensors = cached(folder, key, build)
        images = tensors["images"]
        positions = tensors["positions"].tolist() if skip else list(range(len(files)))
    if len(positions) < len(files):
        _warn_of_skipped(files, set(positions), root, folder)
    return images, positions


def _warn_of_skipped(files: list[Path], kept: set[int], root: Path, folder: Path) -> None:
    """Warn about skipped files; a file beside the cache lists them if they are many."""
    skipped, where = [file for i, file in enumerate(files) if i not in kept], ""
    names = [str(file.relative_to(root)) for file in skipped]
    if len(names) > _NAMES_IN_WARNING and not is_off(folder):
        listing = folder / f"skipped-{fingerprint(skipped)[:16]}.txt"
        text = "".join(f"{file.absolute()}\n" for file in skipped)
        try:
            write_text_atomically(listing, text, private=True)
            where = f"; all are listed in {listing}"
        except OSError as error:
            where = f"; the list of all could not be written ({error})"
    warnings.warn(
        f"{len(skipped)} of {len(files)} image files in {root.absolute()} cannot be read and are "
        f"skipped: {shorten(names, _NAMES_IN_WARNING)}{where}",
        stacklevel=3,
    )
