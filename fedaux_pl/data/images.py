"""Images as uint8 tensors of shape (N, C, H, W): from files, from PIL and from arrays."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.data.cache import cached, fingerprint, is_off
from fedaux_pl.data.input_checks import reason_of, shorten
from fedaux_pl.errors import DataError
from fedaux_pl.files import user_cache, write_text_atomically

_FILES_PER_TASK = 64
_NAMES_IN_WARNING = 5
_CHUNK = 512  # images converted to float at a time: 57 MB at 96 x 96 x 3
# Formats that Pillow decodes by itself; for EPS it would run another program. Files of all other
# formats are refused, whatever their suffix.
_FORMATS = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"}


@cache
def _formats() -> list[str]:
    """Return the formats that this build of Pillow knows, in Pillow's order."""
    Image.init()
    return [name for name in Image.ID if name in _FORMATS]


@cache
def _readable_suffixes() -> frozenset[str]:
    suffixes = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in suffixes.items() if kind in _formats())


def is_image(path: Path) -> bool:
    """Whether files with this suffix are read here; hidden files do not count."""
    return path.suffix.lower() in _readable_suffixes() and not path.name.startswith(".")


def list_images(folders: Sequence[Path]) -> list[list[Path]]:
    """List the image files below each folder, sorted, without those in hidden folders.

    Every file counts once. Links are followed, unless they lead to a folder above the given ones
    or to images that count already; a warning names those.
    """
    above = {parent for folder in folders for parent in folder.resolve().parents}
    files: list[list[Path]] = [[] for _ in folders]
    visited: set[Path] = set()
    skipped: list[Path] = []
    # In this order an image counts where it is, not where a link leads to it.
    queues: dict[str, list[tuple[int, Path]]] = {"folders": [], "links": [], "linked files": []}
    for number, folder in enumerate(folders):
        queues["links" if folder.is_symlink() else "folders"].append((number, folder))
    while kind := next((kind for kind, queue in queues.items() if queue), None):
        number, path = queues[kind].pop(0)
        real, is_file = path.resolve(), kind == "linked files"
        is_counted = is_file and is_image(real) and real.parent in visited
        if real in visited or real in above or is_counted:
            skipped.append(path)
            continue
        visited.add(real)
        if is_file:
            files[number].append(path)
            continue
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            child = path / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                queues["links" if entry.is_symlink() else "folders"].append((number, child))
            elif is_image(child):
                if not entry.is_file():
                    raise DataError(f"{child.absolute()} is no file, or a link to none: remove it")
                if entry.is_symlink():
                    queues["linked files"].append((number, child))
                else:
                    files[number].append(child)
    if skipped:
        warnings.warn(
            f"{len(skipped)} links to a folder above, or to images that count already, are "
            f"skipped, such as {skipped[0].absolute()}",
            stacklevel=2,
        )
    return [sorted(group) for group in files]


def load_images(
    files: list[Path],
    root: Path,
    size: int,
    channels: int,
    cache_dir: Path | None,
    skip: bool = False,
) -> tuple[Tensor, list[int]]:
    """Decode image files to squares, or load them from the cache.

    Args:
        files: The image files.
        root: The folder of the data set, part of the cache key.
        size: The height and width of the result.
        channels: 3 for color, 1 for gray.
        cache_dir: The folder of the cache; None for the user's cache folder.
        skip: Whether to leave out files that cannot be read, with a warning that names them.

    Returns:
        The images, uint8 of shape (N, channels, size, size), and their positions in ``files``.
    """
    # the names of the entries are part of the cache key: do not rename them
    key: dict[str, str | int] = {"kind": "files", "root": str(root.absolute()), "size": size}
    key |= {"channels": channels, "files": fingerprint(files)}
    key |= {"on_error": "skip"} if skip else {}
    folder = cache_dir or user_cache()

    def build() -> dict[str, Tensor]:
        images, failures = decode_images(files, size, channels, skip)
        if not skip:
            return {"images": images}
        kept = torch.tensor(_without(failures, len(files), root))
        return {"images": images[kept], "positions": kept}

    tensors = cached(folder, key, build)
    positions = tensors["positions"].tolist() if skip else list(range(len(files)))
    _report(files, positions, root, folder)
    return tensors["images"], positions


def find_readable(files: list[Path], root: Path, size: int, channels: int) -> list[int]:
    """Return the positions of the files that can be read, and warn about the others."""
    failures: dict[int, str] = {}
    for start in range(0, len(files), _CHUNK):
        _, failed = decode_images(files[start : start + _CHUNK], size, channels, skip=True)
        failures |= {start + i: reason for i, reason in failed.items()}
    positions = _without(failures, len(files), root)
    _report(files, positions, root, user_cache())
    return positions


def _without(failures: dict[int, str], count: int, root: Path) -> list[int]:
    if len(failures) == count:
        raise DataError(f"no image file in {root.absolute()} can be read: {failures[0]}")
    return [i for i in range(count) if i not in failures]


def _report(files: list[Path], positions: list[int], root: Path, folder: Path) -> None:
    """Warn about skipped files; a file beside the cache lists them if they are many."""
    kept, count = set(positions), len(files)
    skipped = [file for i, file in enumerate(files) if i not in kept]
    if not skipped:
        return
    names, where = [str(file.relative_to(root)) for file in skipped], ""
    if len(names) > _NAMES_IN_WARNING and not is_off(folder):
        listing = folder / f"skipped-{fingerprint(skipped)[:16]}.txt"
        text = "".join(f"{file.absolute()}\n" for file in skipped)
        try:
            write_text_atomically(listing, lambda file: file.write(text), private=True)
            where = f"; all are listed in {listing}"
        except OSError as error:
            where = f"; the list of all could not be written ({error})"
    warnings.warn(
        f"{len(skipped)} of {count} image files in {root.absolute()} cannot be read and are "
        f"skipped: {shorten(names, _NAMES_IN_WARNING)}{where}",
        stacklevel=3,
    )


def decode_images(
    files: Sequence[Path], size: int, channels: int, skip: bool = False
) -> tuple[Tensor, dict[int, str]]:
    """Decode image files to squares, uint8 of shape (len(files), channels, size, size).

    A file that cannot be read raises a DataError or, with ``skip``, its image is black; the dict
    has the reason for each such position.
    """
    result = torch.zeros((len(files), channels, size, size), dtype=torch.uint8)
    failures: dict[int, str] = {}

    def decode_some(start: int) -> int:
        some = files[start : start + _FILES_PER_TASK]
        for index, file in enumerate(some, start):
            try:
                result[index] = decode_image(file, size, channels)
            except DataError as error:
                if not skip:
                    raise
                failures[index] = str(error)
        return len(some)

    # disable=None: silent unless stderr is a terminal
    options = {"desc": "decoding", "unit": "img", "disable": None, "delay": 2.0}
    with ThreadPoolExecutor() as pool, tqdm(total=len(files), **options) as bar:
        for count in pool.map(decode_some, range(0, len(files), _FILES_PER_TASK)):
            bar.update(count)
    return result, dict(sorted(failures.items()))


def decode_image(file: Path, size: int, channels: int) -> Tensor:
    """Decode one file; arguments as of ``decode_images``."""
    try:
        with Image.open(file, formats=_formats()) as image:
            limit = Image.MAX_IMAGE_PIXELS  # beyond it Pillow only warns
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {limit:,}")
            return from_pil(image, channels, size)
    # Pillow can raise nearly any exception for a damaged file
    except Exception as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({reason_of(error)}): repair or remove it"
        ) from error


def from_pil(image: Any, channels: int | None = None, size: int | None = None) -> Tensor:
    """Return the pixels of a PIL image, uint8 of shape (C, H, W).

    Args:
        image: The image; more than 8 bits per channel raise a ValueError.
        channels: 3 for color, 1 for gray; None for those of the image.
        size: The height and width to which the central square is scaled; None for the whole image.
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
    pixels = np.array(plain, dtype=np.uint8).reshape(plain.height, plain.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def from_array(array: NDArray[Any], what: str, floats: bool = False) -> Tensor:
    """Turn images of shape (N, C, H, W), (N, H, W, C) or (N, H, W) into (N, C, H, W).

    Channels are last if the last dimension is 1 or 3 and the second is neither. The array, which
    ``what`` names in messages, is uint8 or, with ``floats``, float32.
    """
    if array.dtype != np.uint8 and not (floats and array.dtype == np.float32):
        raise DataError(
            f"{what} must be uint8 with values 0 ... 255{', or floats' if floats else ''}, but is "
            f"{array.dtype}: scale it to 0 ... 255 and convert it to uint8"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{what} must have the shape (N, C, H, W) with 1 to 4 channels, (N, H, W, C) with 1 or "
            f"3, or (N, H, W), but has {array.shape}"
        )
    if array.size == 0:
        raise DataError(f"{what} holds no images: its shape is {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array))


def resize(images: Tensor, size: int) -> Tensor:
    """Scale the central square of images, uint8 (N, C, H, W), to (N, C, size, size).

    The interpolation is bilinear and antialiased.
    """
    height, width = images.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
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
