"""Decodes image files, in threads or by worker processes, and caches the decoded pictures."""

import multiprocessing
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from tqdm.contrib.concurrent import thread_map  # type: ignore[import-untyped]

from fedaux_pl.data.cache import CacheKey, cached, fingerprint, is_off
from fedaux_pl.data.image_files import image_formats
from fedaux_pl.data.input_checks import (
    FileState,
    check_unchanged,
    file_state,
    note,
    reason_of,
    shorten,
)
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Rows
from fedaux_pl.data.pil_images import WHITE, Original, is_transparent, note_transparent, read_pil
from fedaux_pl.errors import DataError
from fedaux_pl.files import user_cache, write_text_atomically
from fedaux_pl.names import readable

_FILES_PER_TASK = 64
_NAMES_IN_NOTE = 5
_TO_8_BITS = (
    "import sys; from PIL import Image; "
    "Image.open(sys.argv[1]).convert('I').point(lambda value: value / 256).convert('L')"
    ".save(sys.argv[1])"
)


class DecodedImages(NamedTuple):
    """The pictures of files, all of the same shape, and their properties before decoding."""

    images: Tensor
    failures: dict[int, str]  # by the position of a file that cannot be read, the reason
    originals: dict[int, Original]  # by the position of every other file

    @property
    def num_transparent(self) -> int:
        """The number of transparent pictures."""
        return sum(original.is_transparent for original in self.originals.values())


class OpenedImages(NamedTuple):
    """The pictures of the files that can be read."""

    images: Inputs
    positions: list[int]  # of these files in the list of all files
    has_transparent: bool


def decode_images(
    files: Sequence[Path],
    size: int,
    channels: int,
    background: str | None = WHITE,
    skip: bool = False,
) -> DecodedImages:
    """Decode image files to squares, uint8 of shape (len(files), channels, size, size).

    Args:
        files: The image files.
        size: The height and width to which the central square of each picture is scaled.
        channels: 3 for color, 1 for gray.
        background: The color on which transparent pictures are put, as in ``read_pil``.
        skip: Whether a file that cannot be read gets a black picture; otherwise it raises a
            DataError.
    """
    images = torch.zeros((len(files), channels, size, size), dtype=torch.uint8)
    failures: dict[int, str] = {}
    originals: dict[int, Original] = {}

    def decode_some(start: int) -> None:
        for index, file in enumerate(files[start : start + _FILES_PER_TASK], start):
            try:
                images[index], originals[index] = read_image(file, size, channels, background)
            except DataError as error:
                if not skip:
                    raise
                failures[index] = str(error)

    _map_in_threads(decode_some, len(files), "decoding")
    return DecodedImages(images, dict(sorted(failures.items())), originals)


def _map_in_threads(work: Callable[[int], None], count: int, activity: str) -> None:
    """Call ``work`` with the first position of each group of ``_FILES_PER_TASK`` files."""
    starts = range(0, count, _FILES_PER_TASK)
    bar = {"desc": activity, "unit": "img", "unit_scale": _FILES_PER_TASK, "delay": 2.0}
    # disable=None shows the bar only if stderr is a terminal
    thread_map(work, starts, tqdm_class=tqdm, disable=None, **bar)


def read_image(
    file: Path, size: int, channels: int, background: str | None
) -> tuple[Tensor, Original]:
    """Decode one file to (channels, size, size), and return its properties before decoding."""
    with _opened(file) as image:
        return read_pil(image, channels, size, background)


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """Open a picture; any exception while it is read becomes a DataError that names the file."""
    remedy = "repair or remove it"
    try:
        with Image.open(file, formats=image_formats()) as image:
            limit = Image.MAX_IMAGE_PIXELS  # above it Pillow only prints a warning
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {limit:,}")
            if _has_16_bit_gray(image):
                remedy = (
                    "convert it to 8 bits, which replaces the file, by "
                    f'`python -c "{_TO_8_BITS}" {shlex.quote(str(file.absolute()))}`, or remove it'
                )
            yield image
    # a damaged file can make Pillow raise nearly any exception
    except Exception as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({reason_of(error)}): {remedy}"
        ) from error


def _has_16_bit_gray(image: Image.Image) -> bool:
    # Pillow opens gray PGM files of 16 bits in the mode of 32 bits
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")


def open_images(
    files: list[Path],
    root: Path,
    size: int,
    channels: int,
    cache_dir: Path | None,
    background: str | None = WHITE,
    *,
    skip: bool = False,
    on_disk: bool = False,
) -> OpenedImages:
    """Decode image files to squares, uint8 of shape (N, channels, size, size), or load them.

    A note counts the transparent pictures.

    Args:
        files: The image files.
        root: The folder of the files, for messages and as a part of the cache key.
        size: The height and width to which the central square of each picture is scaled.
        channels: 3 for color, 1 for gray.
        cache_dir: The folder of the cache; None for the user's cache.
        background: The color on which transparent pictures are put, as in ``read_pil``.
        skip: Whether files that cannot be read are left out, and named in a note; otherwise they
            raise a DataError.
        on_disk: Whether pictures are decoded each time that they are read; otherwise they are
            decoded once and cached.
    """

    def decode(size: int) -> dict[str, Tensor]:
        decoded = decode_images(files, size, channels, background, skip)
        tensors = {
            "images": decoded.images,
            "num_transparent": torch.tensor(decoded.num_transparent),
        }
        if not skip:
            return tensors
        failures = decoded.failures
        if failures and len(failures) == len(files):
            raise DataError(f"no image file in {root.absolute()} can be read: {failures[0]}")
        positions = torch.tensor([i for i in range(len(files)) if i not in failures])
        return tensors | {"images": decoded.images[positions], "positions": positions}

    folder = cache_dir or user_cache()
    positions = list(range(len(files)))
    images: Inputs
    if on_disk:
        if skip:  # a single pixel of each picture shows whether it can be read
            tensors = decode(1)
            positions = tensors["positions"].tolist()
            num_transparent = int(tensors["num_transparent"])
        else:
            num_transparent = _count_transparent(files)
        images = _read_later([files[i] for i in positions], size, channels, background)
    else:
        # the names of these entries are part of the cache key: do not rename them
        key: CacheKey = {
            "kind": "files",
            "root": str(root.absolute()),
            "size": size,
            "channels": channels,
            "files": fingerprint(files),
        }
        if skip:
            key["on_error"] = "skip"
        if background is not None:  # keys of version 1 have no background
            key["background"] = background
        tensors = cached(folder, key, lambda: decode(size))
        images = tensors["images"]
        num_transparent = int(tensors.get("num_transparent", 0))  # caches of version 1 lack it
        if skip:
            positions = tensors["positions"].tolist()
    if len(positions) < len(files):
        _note_skipped(files, set(positions), root, folder)
    if background is not None:
        note_transparent(num_transparent, len(positions), str(root.absolute()), background)
    return OpenedImages(images, positions, num_transparent > 0)


def _count_transparent(files: Sequence[Path]) -> int:
    """Count the transparent pictures; of opaque pictures only the head of the file is read."""
    transparent: list[Path] = []

    def find_transparent(start: int) -> None:
        for file in files[start : start + _FILES_PER_TASK]:
            with _opened(file) as image:
                if is_transparent(image):
                    transparent.append(file)

    _map_in_threads(find_transparent, len(files), "looking for transparent pictures")
    return len(transparent)


def _read_later(
    files: Sequence[Path], size: int, channels: int, background: str | None
) -> LazyInputs:
    """Return pictures that worker processes decode each time that they are read."""
    states = [file_state(file) for file in files]

    def read(rows: Rows) -> Tensor:
        futures = []
        for worker_rows in np.array_split(rows, _num_workers()):
            opened = [(files[row], states[row]) for row in worker_rows]
            futures.append(_workers().submit(_decode, opened, size, channels, background))
        return torch.from_numpy(np.concatenate([future.result() for future in futures]))

    return LazyInputs(read, (len(files), channels, size, size), torch.uint8)


def _decode(
    files: Sequence[tuple[Path, FileState]], size: int, channels: int, background: str | None
) -> NDArray[np.uint8]:
    """Decode files that must not have changed since they were opened."""
    pictures = np.empty((len(files), channels, size, size), np.uint8)
    for picture, (file, opened) in zip(pictures, files, strict=True):
        picture[:] = read_image(file, size, channels, background)[0].numpy()
        check_unchanged(file, file_state(file), opened)
    return pictures


def _num_workers() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _workers() -> ProcessPoolExecutor:
    # Processes are forked, as those of DataLoaders are: the other methods would import the main
    # program again, which would then need a guard.
    context = multiprocessing.get_context("fork")
    # With one thread each, because OpenMP's threads do not survive a fork.
    return ProcessPoolExecutor(_num_workers(), context, torch.set_num_threads, (1,))


def _note_skipped(files: list[Path], kept: set[int], root: Path, folder: Path) -> None:
    """Print a note that names skipped files; if there are many, a file by the cache lists all."""
    skipped = [file for i, file in enumerate(files) if i not in kept]
    names = [readable(file.relative_to(root)) for file in skipped]
    where = ""
    if len(names) > _NAMES_IN_NOTE and not is_off(folder):
        listing = folder / f"skipped-{fingerprint(skipped)[:16]}.txt"
        text = "".join(f"{readable(file.absolute())}\n" for file in skipped)
        try:
            write_text_atomically(listing, text, private=True)
            where = f"; all are listed in {listing}"
        except OSError as error:
            where = f"; the list of all could not be written ({error})"
    note(
        f"{len(skipped)} of {len(files)} image files in {root.absolute()} cannot be read and are "
        f"skipped: {shorten(names, _NAMES_IN_NOTE)}{where}"
    )
