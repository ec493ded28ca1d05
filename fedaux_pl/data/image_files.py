"""Decodes image files into one tensor."""

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.data.cache import cached, fingerprint, is_off
from fedaux_pl.data.foreign_files import reason_of, shorten
from fedaux_pl.errors import DataError
from fedaux_pl.files import user_cache, write_text_atomically

_FILES_PER_TASK = 64
_NAMES_IN_WARNING = 5
_BAR_DELAY = 2.0  # seconds before a progress bar appears
# Formats that Pillow decodes by itself; for EPS it would run another program. Files of all other
# formats are refused, whatever their suffix.
_FORMATS = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"}


@cache
def _formats() -> list[str]:
    """The formats that are read here and that this build of Pillow knows, in Pillow's order."""
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
    """Lists the image files below each folder, sorted, without those in hidden folders.

    Every file counts once. Links are followed, unless they lead to a folder above the given ones
    or to images that count already; a warning names those.

    Raises:
        DataError: If a folder cannot be read, or a link leads nowhere.
    """
    above = {parent for folder in folders for parent in folder.resolve().parents}
    files: list[list[Path]] = [[] for _ in folders]
    visited: set[Path] = set()
    skipped: list[Path] = []
    real_folders: list[tuple[int, Path]] = []
    linked_folders: list[tuple[int, Path]] = []
    linked_files: list[tuple[int, Path]] = []
    for number, folder in enumerate(folders):
        (linked_folders if folder.is_symlink() else real_folders).append((number, folder))
    # In this order an image counts where it is, not where a link leads to it.
    while pending := real_folders or linked_folders or linked_files:
        number, path = pending.pop(0)
        real = path.resolve()
        is_counted = pending is linked_files and is_image(real) and real.parent in visited
        if real in visited or real in above or is_counted:
            skipped.append(path)
            continue
        visited.add(real)
        if pending is linked_files:
            files[number].append(path)
            continue
        for entry in _visible(path):
            child = path / entry.name
            if entry.is_dir():
                (linked_folders if entry.is_symlink() else real_folders).append((number, child))
            elif is_image(child):
                if not entry.is_file():
                    raise DataError(f"{child.absolute()} is no file, or a link to none: remove it")
                if entry.is_symlink():
                    linked_files.append((number, child))
                else:
                    files[number].append(child)
    if skipped:
        warnings.warn(
            f"{len(skipped)} links to a folder above, or to images that count already, are "
            f"skipped, such as {skipped[0].absolute()}",
            stacklevel=2,
        )
    return [sorted(group) for group in files]


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"the folder {folder.absolute()} cannot be read ({error})") from error
    return sorted(found, key=lambda entry: entry.name)


def load_images(
    files: list[Path],
    root: Path,
    size: int,
    channels: int,
    cache_dir: Path | None,
    skip: bool = False,
) -> tuple[Tensor, list[int]]:
    """Decodes image files to squares, or loads them from the cache.

    Args:
        files: The image files.
        root: The folder of the data set, part of the cache key.
        size: The height and width of the result.
        channels: 3 for color, 1 for gray.
        cache_dir: The folder of the cache; None for the user's cache folder.
        skip: Whether to leave out files that cannot be read, with a warning that names them, or to
            raise a DataError.

    Returns:
        The images, uint8 of shape (N, channels, size, size), and their positions in ``files``.
    """
    # the names of the entries are part of the cache key: do not rename them
    key: dict[str, str | int] = {
        "kind": "files",
        "root": str(root.absolute()),
        "size": size,
        "channels": channels,
        "files": fingerprint(files),
        **({"on_error": "skip"} if skip else {}),
    }
    folder = user_cache() if cache_dir is None else cache_dir

    def build() -> dict[str, Tensor]:
        images, failures = decode_images(files, size, channels, skip)
        if not skip:
            return {"images": images}
        if len(failures) == len(files):
            raise DataError(f"no image file in {root.absolute()} can be read: {failures[0]}")
        kept = torch.tensor([i for i in range(len(files)) if i not in failures])
        return {"images": images[kept], "positions": kept}

    tensors = cached(folder, key, build)
    positions = tensors["positions"].tolist() if skip else list(range(len(files)))
    if len(positions) < len(files):
        kept = set(positions)
        skipped = [file for i, file in enumerate(files) if i not in kept]
        listing = folder / f"skipped-{fingerprint(skipped)[:16]}.txt"
        _report(skipped, len(files), root, None if is_off(folder) else listing)
    return tensors["images"], positions


def _report(skipped: list[Path], count: int, root: Path, listing: Path | None) -> None:
    """Warns about skipped files; a file beside the cache lists them if they are many."""
    names = [str(file.relative_to(root)) for file in skipped]
    where = ""
    if len(names) > _NAMES_IN_WARNING and listing is not None:
        try:
            text = "".join(f"{file.absolute()}\n" for file in skipped)
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
    """Decodes image files to squares.

    Args:
        files: The image files.
        size: The height and width of the result.
        channels: 3 for color, 1 for gray.
        skip: Whether to go on after a file that cannot be read, or to raise a DataError.

    Returns:
        uint8 of shape (len(files), channels, size, size), and for each position whose file cannot
        be read the reason; the image there is black.
    """
    result = torch.zeros((len(files), channels, size, size), dtype=torch.uint8)
    failures: dict[int, str] = {}

    def decode_some(start: int) -> int:
        some = files[start : start + _FILES_PER_TASK]
        for index, file in enumerate(some, start):
            try:
                result[index] = _decode_one(file, size, channels)
            except DataError as error:
                if not skip:
                    raise
                failures[index] = str(error)
        return len(some)

    with (
        ThreadPoolExecutor() as pool,
        # disable=None: silent unless stderr is a terminal
        tqdm(total=len(files), desc="decoding", unit="img", disable=None, delay=_BAR_DELAY) as bar,
    ):
        for count in pool.map(decode_some, range(0, len(files), _FILES_PER_TASK)):
            bar.update(count)
    return result, dict(sorted(failures.items()))


def _decode_one(file: Path, size: int, channels: int) -> Tensor:
    try:
        with Image.open(file, formats=_formats()) as image:
            limit = Image.MAX_IMAGE_PIXELS  # beyond it Pillow only warns
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {limit:,}")
            check_depth(image)
            # JPEG decodes several times faster at a fraction of its size; at twice the final
            # size the resampling below still determines the quality
            image.draft(None, (2 * size, 2 * size))
            plain = convert(image, channels)
            square = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    # Pillow can raise nearly any exception for a damaged file
    except Exception as error:
        raise DataError(
            f"cannot read the image {file.absolute()} ({reason_of(error)}): repair or remove it"
        ) from error
    return pixels_of(square)


def check_depth(image: Any) -> None:
    """Raises a ValueError for a PIL image with more than 8 bits per channel."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode!r})")


def convert(image: Any, channels: int) -> Any:
    """Converts a PIL image to color (3 channels) or gray (1)."""
    # through RGBA: Pillow warns about palettes with a transparent color
    plain = image.convert("RGBA") if "transparency" in image.info else image
    return plain.convert("RGB" if channels == 3 else "L")


def pixels_of(image: Any) -> Tensor:
    """The pixels of a PIL image of mode RGB or L, uint8 of shape (C, H, W)."""
    pixels = np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1)
