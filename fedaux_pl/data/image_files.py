"""Finds the image files in folders."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from fedaux_pl.data.input_checks import note
from fedaux_pl.errors import DataError

# Formats that Pillow decodes by itself; for EPS it would run another program. Files of all other
# formats are refused, whatever their suffix.
_FORMATS = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"}


@cache
def image_formats() -> list[str]:
    """Return the readable formats that this build of Pillow supports, in Pillow's order."""
    Image.init()
    return [name for name in Image.ID if name in _FORMATS]


@cache
def _suffixes() -> frozenset[str]:
    """Return the suffixes of files in a readable format, in lower case."""
    formats = image_formats()
    suffixes = Image.registered_extensions().items()
    return frozenset(suffix for suffix, name in suffixes if name in formats)


def is_image(path: Path) -> bool:
    """Return whether a file has the suffix of a readable image; hidden files have not."""
    return path.suffix.lower() in _suffixes() and not path.name.startswith(".")


def list_images(folders: Sequence[Path]) -> list[list[Path]]:
    """List the image files below each folder, sorted, without the files in hidden folders.

    Every file is listed once. Links are followed, except links to a folder above the given folders
    and links to images that are listed already; a note names one of the links that are skipped.
    """
    above = {parent for folder in folders for parent in folder.resolve().parents}
    files: list[list[Path]] = [[] for _ in folders]
    visited: set[Path] = set()
    skipped: list[Path] = []
    # folders before links, so that an image is listed where it is, not where a link leads to it
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
                    raise DataError(
                        f"{child.absolute()} is neither a file nor a link to a file: remove it"
                    )
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
            f"{len(skipped)} links to a folder above, or to images that are listed already, are "
            f"skipped, such as {skipped[0].absolute()}"
        )
    return [sorted(group) for group in files]
