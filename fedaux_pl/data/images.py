"""Images as uint8 tensors of shape (N, C, H, W): from files, from PIL and from arrays."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.functional import pil_to_tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from tqdm.contrib.concurrent import thread_map  # type: ignore[import-untyped]

from fedaux_pl.data.cache import CacheKey, cached, fingerprint, is_off
from fedaux_pl.data.input_checks import (
    FileState,
    check_unchanged,
    file_state,
    note,
    reason_of,
    shorten,
)
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Rows
from fedaux_pl.errors import DataError
from fedaux_pl.files import user_cache, write_text_atomically

_FILES_PER_TASK = 64
_NAMES_IN_NOTE = 5
_CHUNK = 512  # images converted to float at a time: 57 MB at 96 x 96 x 3
# Formats that Pillow decodes by itself; for EPS it would run another program. Files of all other
# formats are refused, whatever their suffix.
_FORMATS = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"}


@cache
def _formats() -> tuple[list[str], set[str]]:
    """Return the formats that this build of Pillow knows, in Pillow's order, and their suffixes."""
    suffixes = Image.registered_extensions()
    known = [name for name in Image.ID if name in _FORMATS]
    return known, {suffix for suffix, kind in suffixes.items() if kind in known}


def is_image(path: Path) -> bool:
    """Whether files with this suffix are read here; hidden files do not count."""
    return path.suffix.lower() in _formats()[1] and not path.name.startswith(".")


def list_images(folders: Sequence[Path]) -> list[list[Path]]:
    """List the image files below each folder, sorted, without those in hidden folders.

    Every file counts once. Links are followed, unless they lead to a folder above the given ones
    or to images that count already; a note names one of those.
    """
    above = {parent for folder in folders for parent in folder.resolve().parents}
    files: list[list[Path]] = [[] for _ in folders]
    visited: set[Path] = set()
    skipped: list[Path] = []
    # in this order an image counts where it is, not where a link leads to it
    real_folders: list[tuple[int, Path]] = []
    links: list[tuple[int, Path]] = []
    linked_files: list[tuple[int, Path]] = []
    for number, folder in enumerate(folders):
        (links if folder.is_symlink() else real_folders).append((number, folder))
    while real_folders or links:
        number, path = (real_folders or links).pop(0)
        real = path.resolve()
        if real in visited or real in above:
            skipped.append(path)
            continue
        visited.add(real)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            child = path / entry.name
            if entry.is_dir():
                if not entry.name.startswith("."):
                    (links if entry.is_symlink() else real_folders).append((number, child))
            elif is_image(child):
                if not entry.is_file():
                    raise DataError(f"{child.absolute()} is no file, or a link to none: remove it")
                if entry.is_symlink():
                    linked_files.append((number, child))
                else:
                    files[number].append(child)
    for number, path in linked_files:
        real = path.resolve()
        if real in visited or (is_image(real) and real.parent in visited):
            skipped.append(path)
        else:
            visited.add(real)
            files[number].append(path)
    if skipped:
        note(
            f"{len(skipped)} links to a folder above, or to images that count already, are "
            f"skipped, such as {skipped[0].absolute()}"
        )
    return [sorted(group) for group in files]


def decode_images(
    files: Sequence[Path], size: int, channels: int, skip: bool = False
) -> tuple[Tensor, dict[int, str]]:
    """Decode image files to squares, uint8 of shape (len(files), channels, size, size).

    ``channels`` are 3 for color, 1 for gray. A file that cannot be read raises a DataError or, with
    ``skip``, its image is black; the dict has the reason for each such position.
    """
    result = torch.zeros((len(files), channels, size, size), dtype=torch.uint8)
    failures: dict[int, str] = {}

    def decode_some(start: int) -> None:
        for index, file in enumerate(files[start : start + _FILES_PER_TASK], start):
            try:
                result[index] = decode_image(file, size, channels)
            except DataError as error:
                if not skip:
                    raise
                failures[index] = str(error)

    starts = range(0, len(files), _FILES_PER_TASK)
    bar = {"desc": "decoding", "unit": "img", "unit_scale": _FILES_PER_TASK, "delay": 2.0}
    # disable=None: silent unless stderr is a terminal
    thread_map(decode_some, starts, tqdm_class=tqdm, disable=None, **bar)
    return result, dict(sorted(failures.items()))


def decode_image(file: Path, size: int, channels: int) -> Tensor:
    """Decode one file; arguments as of ``decode_images``."""
    try:
        with Image.open(file, formats=_formats()[0]) as image:
            limit = Image.MAX_IMAGE_PIXELS  # beyond it Pillow only warns
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {limit:,}")
            return from_pil(image, channels, size)
    # Pillow can raise nearly any exception for a damaged file
    except Exception as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({reason_of(error)}): repair or remove it"
        ) from error


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
    """Decode image files to squares, or load them from the cache; return their positions as well.

    With ``on_disk`` pictures are decoded when they are read. With ``skip`` files that cannot be
    read are left out, and a note names them. Images are uint8 (N, channels, size, size).
    """

    def decode(size: int) -> dict[str, Tensor]:
        images, failures = decode_images(files, size, channels, skip)
        if not skip:
            return {"images": images}
        if failures and len(failures) == len(files):
            raise DataError(f"no image file in {root.absolute()} can be read: {failures[0]}")
        positions = torch.tensor([i for i in range(len(files)) if i not in failures])
        return {"images": images[positions], "positions": positions}

    folder = cache_dir or user_cache()
    positions = list(range(len(files)))
    images: Inputs
    if on_disk:
        if skip:  # a single pixel of each tells whether they can be read
            positions = decode(1)["positions"].tolist()
        images = _read_later([files[i] for i in positions], size, channels)
    else:
        # the names of the entries are part of the cache key: do not rename them
        key: CacheKey = {
            "kind": "files",
            "root": str(root.absolute()),
            "size": size,
            "channels": channels,
            "files": fingerprint(files),
        }
        if skip:
            key["on_error"] = "skip"
        tensors = cached(folder, key, lambda: decode(size))
        images = tensors["images"]
        if skip:
            positions = tensors["positions"].tolist()
    if len(positions) < len(files):
        _note_skipped(files, set(positions), root, folder)
    return images, positions


def _read_later(files: Sequence[Path], size: int, channels: int) -> LazyInputs:
    """Return pictures that worker processes decode when they are read."""
    states = [file_state(file) for file in files]

    def read(rows: Rows) -> Tensor:
        futures = []
        for chosen in np.array_split(rows, _num_workers()):
            opened = [(files[row], states[row]) for row in chosen]
            futures.append(_workers().submit(_decode, opened, size, channels))
        return torch.from_numpy(np.concatenate([future.result() for future in futures]))

    return LazyInputs(read, (len(files), channels, size, size), torch.uint8)


def _decode(files: Sequence[tuple[Path, FileState]], size: int, channels: int) -> NDArray[np.uint8]:
    pictures = np.empty((len(files), channels, size, size), np.uint8)
    for picture, (file, opened) in zip(pictures, files, strict=True):
        picture[:] = decode_image(file, size, channels).numpy()
        check_unchanged(file, file_state(file), opened)
    return pictures


def _num_workers() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _workers() -> ProcessPoolExecutor:
    # fork, as DataLoaders: other methods import the program again, which needs a guard there
    context = multiprocessing.get_context("fork")
    # one thread: OpenMP's threads do not survive a fork
    return ProcessPoolExecutor(_num_workers(), context, torch.set_num_threads, (1,))


def _note_skipped(files: list[Path], kept: set[int], root: Path, folder: Path) -> None:
    """Name the skipped files; a file beside the cache lists them if they are many."""
    skipped = [file for i, file in enumerate(files) if i not in kept]
    names = [str(file.relative_to(root)) for file in skipped]
    where = ""
    if len(names) > _NAMES_IN_NOTE and not is_off(folder):
        listing = folder / f"skipped-{fingerprint(skipped)[:16]}.txt"
        text = "".join(f"{file.absolute()}\n" for file in skipped)
        try:
            write_text_atomically(listing, text, private=True)
            where = f"; all are listed in {listing}"
        except OSError as error:
            where = f"; the list of all could not be written ({error})"
    note(
        f"{len(skipped)} of {len(files)} image files in {root.absolute()} cannot be read and are "
        f"skipped: {shorten(names, _NAMES_IN_NOTE)}{where}"
    )


def from_pil(image: Any, channels: int | None = None, size: int | None = None) -> Tensor:
    """Return the pixels of a PIL image, uint8 of shape (C, H, W).

    None for ``channels`` stands for those of the image. The central square is scaled to ``size``;
    None for the whole image. More than 8 bits per channel raise a ValueError.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode!r})")
    is_gray = image.mode in ("1", "L", "LA") if channels is None else channels == 1
    if size is not None:
        # JPEG decodes several times faster at a fraction of its size; at twice the final size the
        # resampling below still determines the quality
        image.draft(None, (2 * size, 2 * size))
    # through RGBA: Pillow warns about palettes with a transparent color
    plain = image.convert("RGBA") if "transparency" in image.info else image
    plain = plain.convert("L" if is_gray else "RGB")
    if size is not None:
        plain = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    pixels: Tensor = pil_to_tensor(plain)
    return pixels


def from_array(array: NDArray[Any], what: str, floats: bool = False) -> Tensor:
    """Turn images of shape (N, C, H, W), (N, H, W, C) or (N, H, W) into (N, C, H, W).

    Channels are last if the last dimension is 1 or 3 and the second is neither. The array, which
    ``what`` names in messages, is uint8 or, with ``floats``, float32.
    """
    if array.dtype != np.uint8 and not (floats and array.dtype == np.float32):
        raise DataError(
            f"{what}: got {array.dtype}; expected uint8 with values 0 ... 255"
            f"{', or floats' if floats else ''}: scale it to 0 ... 255 and convert it to uint8"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{what}: got shape {array.shape}; expected (N, C, H, W) with 1 to 4 channels, "
            "(N, H, W, C) with 1 or 3, or (N, H, W)"
        )
    if array.size == 0:
        raise DataError(f"{what} holds no images: its shape is {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array))


def resize(images: Tensor, size: int) -> Tensor:
    """Scale the central square of images, uint8 (N, C, H, W), to (N, C, size, size)."""
    height, width = images.shape[-2:]
    side = min(height, width)
    top = (height - side) // 2
    left = (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    if side == size:
        return square.contiguous()
    result = torch.empty((*images.shape[:2], size, size), dtype=torch.uint8)
    for start in range(0, len(square), _CHUNK):
        # in float: the uint8 kernels round differently on different CPUs
        chunk = square[start : start + _CHUNK].float()
        scaled = functional.interpolate(chunk, (size, size), mode="bilinear", antialias=True)
        result[start : start + _CHUNK] = scaled.round_().clamp_(0, 255)
    return result
