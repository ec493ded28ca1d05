"""Decodes image files into one tensor."""

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.data.cache import CACHE_FOLDER, cached, fingerprint
from fedaux_pl.errors import DataError

_FILES_PER_TASK = 64
_BAR_DELAY = 2.0  # seconds before a progress bar appears
_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


@cache
def _readable_suffixes() -> frozenset[str]:
    suffixes = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in suffixes.items() if kind in Image.OPEN)


def is_image(path: Path) -> bool:
    """Whether Pillow reads files with this suffix; hidden files do not count."""
    return path.suffix.lower() in _readable_suffixes() and not path.name.startswith(".")


def list_images(folder: Path) -> list[Path]:
    """Lists the image files below a folder, sorted, without those in hidden folders."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += filter(is_image, (Path(parent, name) for name in names))
    return sorted(files)


def load_images(
    files: list[Path], root: Path, size: int, channels: int, cache_dir: Path | None
) -> Tensor:
    """Decodes image files to squares, or loads them from the cache.

    Args:
        files: The image files.
        root: The folder of the data set, part of the cache key.
        size: The height and width of the result.
        channels: 3 for color, 1 for gray.
        cache_dir: The folder of the cache; None for ``.fedaux_cache`` in ``root``.

    Returns:
        uint8 of shape (len(files), channels, size, size).
    """
    key: dict[str, str | int] = {
        "kind": "files",
        "root": str(root.absolute()),
        "size": size,
        "channels": channels,
        "files": fingerprint(files),
    }
    folder = root / CACHE_FOLDER if cache_dir is None else cache_dir
    return cached(folder, key, lambda: {"images": _decode(files, size, channels)})["images"]


def _decode(files: list[Path], size: int, channels: int) -> Tensor:
    result = torch.empty((len(files), channels, size, size), dtype=torch.uint8)

    def decode_some(start: int) -> int:
        some = files[start : start + _FILES_PER_TASK]
        for index, file in enumerate(some, start):
            result[index] = _decode_one(file, size, channels)
        return len(some)

    with (
        ThreadPoolExecutor() as pool,
        # disable=None: silent unless stderr is a terminal
        tqdm(total=len(files), desc="decoding", unit="img", disable=None, delay=_BAR_DELAY) as bar,
    ):
        for count in pool.map(decode_some, range(0, len(files), _FILES_PER_TASK)):
            bar.update(count)
    return result


def _decode_one(file: Path, size: int, channels: int) -> Tensor:
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"more than 8 bits per channel (mode {image.mode!r})")
            # JPEG decodes several times faster at a fraction of its size; at twice the final
            # size the resampling below still determines the quality
            image.draft(None, (2 * size, 2 * size))
            # through RGBA: Pillow warns about palettes with a transparent color
            plain = image.convert("RGBA") if "transparency" in image.info else image
            plain = plain.convert("RGB" if channels == 3 else "L")
            square = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    except _ERRORS as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({error}): repair or remove it"
        ) from error
    pixels = np.array(square, dtype=np.uint8).reshape(size, size, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1)
