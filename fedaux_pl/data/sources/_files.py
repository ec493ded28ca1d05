"""Decoding image files into one tensor."""

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

from fedaux_pl.data.cache import FOLDER, cached, fingerprint
from fedaux_pl.errors import DataError

BATCH = 64  # files per task of the pool
QUIET = 2.0  # seconds before a progress bar appears
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


@cache
def _readable() -> frozenset[str]:
    endings = Image.registered_extensions()
    return frozenset(ending for ending, kind in endings.items() if kind in Image.OPEN)


def is_image(path: Path) -> bool:
    """Whether a path looks like an image file.

    Args:
        path: Any path.

    Returns:
        True if it has an extension of which Pillow reads the format, and is not hidden.
    """
    return path.suffix.lower() in _readable() and not path.name.startswith(".")


def list_images(folder: Path) -> list[Path]:
    """Finds the image files below a folder.

    Args:
        folder: Where to look, in sub-folders too, except hidden ones (the cache is one).

    Returns:
        The files, sorted.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += filter(is_image, (Path(place, name) for name in names))
    return sorted(found)


def load_images(
    files: list[Path], root: Path, size: int, channels: int, cache_dir: Path | None
) -> Tensor:
    """Decodes image files, or reads what was kept of decoding them before.

    Args:
        files: The image files.
        root: The folder that the cache belongs to.
        size: The height and width of the result.
        channels: 3 for colour, 1 for grey.
        cache_dir: Where to keep the result; None for a folder in ``root``.

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
    folder = root / FOLDER if cache_dir is None else cache_dir
    return cached(folder, key, lambda: {"images": _decode(files, size, channels)})["images"]


def _decode(files: list[Path], size: int, channels: int) -> Tensor:
    result = torch.empty((len(files), channels, size, size), dtype=torch.uint8)

    def work(start: int) -> int:
        batch = files[start : start + BATCH]
        for place, file in enumerate(batch, start):
            result[place] = _decode_one(file, size, channels)
        return len(batch)

    with (
        ThreadPoolExecutor() as pool,
        # disable=None: silent unless stderr is a terminal
        tqdm(total=len(files), desc="decoding", unit="img", disable=None, delay=QUIET) as bar,
    ):
        for count in pool.map(work, range(0, len(files), BATCH)):
            bar.update(count)
    return result


def _decode_one(file: Path, size: int, channels: int) -> Tensor:
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"more than 8 bits a channel (mode {image.mode!r})")
            # JPEG can be decoded at a fraction of its size, several times faster; twice the
            # final size leaves the quality to the filter below
            image.draft(None, (2 * size, 2 * size))
            # through RGBA, for Pillow warns of palettes that have a transparent colour
            plain = image.convert("RGBA") if "transparency" in image.info else image
            plain = plain.convert("RGB" if channels == 3 else "L")
            square = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    except BROKEN as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({error}): repair or remove it"
        ) from error
    pixels = np.array(square, dtype=np.uint8).reshape(size, size, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1)
