"""Images as uint8 tensors of shape (N, C, H, W): from files, from PIL and from arrays.

Transparent pictures are put on a background before their alpha channel is dropped. The pixels of
opaque pictures must stay as they are, bit for bit: sites know records by their digests.
"""

import multiprocessing
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageOps
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
from fedaux_pl.errors import DataError, check_setting, counted
from fedaux_pl.files import user_cache, write_text_atomically
from fedaux_pl.names import readable

WHITE = "white"
"""The default background of transparent pictures."""
_FILES_PER_TASK = 64
_NAMES_IN_NOTE = 5
_CHUNK = 512  # images converted to float at a time: 57 MB at 96 x 96 x 3
# Formats that Pillow decodes by itself; for EPS it would run another program. Files of all other
# formats are refused, whatever their suffix.
_FORMATS = {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP"}
# What Pillow does not do itself: it scales gray values of 2 and 4 bits and colors of 16 bits to
# 8 bits, but leaves the color that a PNG file declares transparent as it is.
_TRANSPARENT_COLOR_SCALES = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}
_TO_8_BITS = (
    "import sys; from PIL import Image; "
    "Image.open(sys.argv[1]).convert('I').point(lambda value: value / 256).convert('L')"
    ".save(sys.argv[1])"
)


class Original(NamedTuple):
    """A picture as it was before it was decoded."""

    width: int
    height: int
    is_gray: bool
    is_transparent: bool  # whether one of its pixels is, at least in part


class DecodedImages(NamedTuple):
    """Pictures of the same shape, and what they were before."""

    images: Tensor
    failures: dict[int, str]  # why the files at these positions cannot be read
    originals: dict[int, Original]  # of the files at all other positions

    @property
    def num_transparent(self) -> int:
        """The number of transparent pictures."""
        return sum(original.is_transparent for original in self.originals.values())


class OpenedImages(NamedTuple):
    """The pictures of files that could be read."""

    images: Inputs
    positions: list[int]  # of their files
    has_transparent: bool


def check_background(background: str) -> str:
    """Return the name of a color, or ``rgb(R, G, B)``; raise a ValueError for anything else."""
    is_color = False
    if isinstance(background, str):
        with suppress(ValueError):
            color = ImageColor.getrgb(background)
            is_color = len(color) == 3 and max(color) <= 255  # a fourth number is its alpha
    expected = "be the name of a color, such as white, or 'rgb(R, G, B)' with numbers up to 255"
    check_setting("background", background, is_color, expected)
    return background


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
    files: Sequence[Path],
    size: int,
    channels: int,
    background: str | None = WHITE,
    skip: bool = False,
) -> DecodedImages:
    """Decode image files to squares, uint8 of shape (len(files), channels, size, size).

    ``channels`` are 3 for color, 1 for gray. A file that cannot be read raises a DataError or, with
    ``skip``, its image is black. ``background`` is as of ``read_pil``.
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


def _map_in_threads(work: Callable[[int], None], count: int, what: str) -> None:
    """Call ``work`` with the first position of every ``_FILES_PER_TASK`` files."""
    starts = range(0, count, _FILES_PER_TASK)
    bar = {"desc": what, "unit": "img", "unit_scale": _FILES_PER_TASK, "delay": 2.0}
    # disable=None: silent unless stderr is a terminal
    thread_map(work, starts, tqdm_class=tqdm, disable=None, **bar)


def decode_image(file: Path, size: int, channels: int, background: str | None = WHITE) -> Tensor:
    """Decode one file, a square of shape (channels, size, size)."""
    pixels, _ = read_image(file, size, channels, background)
    return pixels


def read_image(
    file: Path, size: int, channels: int, background: str | None
) -> tuple[Tensor, Original]:
    """Decode one file, and return what it was before; arguments as of ``decode_images``."""
    with _opened(file) as image:
        return read_pil(image, channels, size, background)


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """Open a picture; whatever reading it raises becomes a DataError that names the file."""
    remedy = "repair or remove it"
    try:
        with Image.open(file, formats=_formats()[0]) as image:
            limit = Image.MAX_IMAGE_PIXELS  # beyond it Pillow only warns
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {limit:,}")
            if _has_16_bit_gray(image):
                remedy = (
                    "convert it to 8 bits, which replaces the file, by "
                    f'`python -c "{_TO_8_BITS}" {shlex.quote(str(file.absolute()))}`, or remove it'
                )
            yield image
    # Pillow can raise nearly any exception for a damaged file
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
    """Decode image files to squares, or load them from the cache.

    With ``on_disk`` pictures are decoded when they are read. With ``skip`` files that cannot be
    read are left out, and a note names them. Images are uint8 (N, channels, size, size).
    ``background`` is as of ``read_pil``; a note counts the transparent pictures.
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
        if skip:  # a single pixel of each tells whether they can be read
            tensors = decode(1)
            positions = tensors["positions"].tolist()
            num_transparent = int(tensors["num_transparent"])
        else:
            num_transparent = _count_transparent(files)
        images = _read_later([files[i] for i in positions], size, channels, background)
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
        if background is not None:  # version 1 wrote no such entry
            key["background"] = background
        tensors = cached(folder, key, lambda: decode(size))
        images = tensors["images"]
        num_transparent = int(tensors.get("num_transparent", 0))  # version 1 did not count them
        if skip:
            positions = tensors["positions"].tolist()
    if len(positions) < len(files):
        _note_skipped(files, set(positions), root, folder)
    if background is not None:
        note_transparent(num_transparent, len(positions), str(root.absolute()), background)
    return OpenedImages(images, positions, num_transparent > 0)


def _count_transparent(files: Sequence[Path]) -> int:
    """Count the transparent pictures; of all others only the head of the file is read."""
    transparent: list[Path] = []

    def look(start: int) -> None:
        for file in files[start : start + _FILES_PER_TASK]:
            with _opened(file) as image:
                if _is_transparent(image):
                    transparent.append(file)

    _map_in_threads(look, len(files), "looking for transparent pictures")
    return len(transparent)


def note_transparent(count: int, total: int, where: str, background: str) -> None:
    """Say how many of the pictures in a folder, or in what ``where`` names, are transparent."""
    if count:
        verb, subject = ("is", "it was") if count == 1 else ("are", "they were")
        note(
            f"{count:,} of {counted(total, 'picture')} {verb} transparent: {subject} put on a "
            f"{background} background ({where})"
        )


def _read_later(
    files: Sequence[Path], size: int, channels: int, background: str | None
) -> LazyInputs:
    """Return pictures that worker processes decode when they are read."""
    states = [file_state(file) for file in files]

    def read(rows: Rows) -> Tensor:
        futures = []
        for chosen in np.array_split(rows, _num_workers()):
            opened = [(files[row], states[row]) for row in chosen]
            futures.append(_workers().submit(_decode, opened, size, channels, background))
        return torch.from_numpy(np.concatenate([future.result() for future in futures]))

    return LazyInputs(read, (len(files), channels, size, size), torch.uint8)


def _decode(
    files: Sequence[tuple[Path, FileState]], size: int, channels: int, background: str | None
) -> NDArray[np.uint8]:
    pictures = np.empty((len(files), channels, size, size), np.uint8)
    for picture, (file, opened) in zip(pictures, files, strict=True):
        picture[:] = decode_image(file, size, channels, background).numpy()
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


def from_pil(
    image: Image.Image,
    channels: int | None = None,
    size: int | None = None,
    background: str | None = WHITE,
) -> Tensor:
    """Return the pixels of a PIL image, uint8 of shape (C, H, W); arguments as of ``read_pil``."""
    pixels, _ = read_pil(image, channels, size, background)
    return pixels


def read_pil(
    image: Image.Image,
    channels: int | None = None,
    size: int | None = None,
    background: str | None = WHITE,
) -> tuple[Tensor, Original]:
    """Return the pixels of a PIL image, uint8 of shape (C, H, W), and what it was before.

    More than 8 bits per channel raise a ValueError.

    Args:
        image: The image.
        channels: 3 for color, 1 for gray; None for those of the image.
        size: The height and width to which the central square is scaled; None for the whole image.
        background: The color on which a transparent picture is put. With None its alpha channel is
            dropped, which uncovers the pixels beneath: version 1 read pictures in this way.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode!r})")
    is_gray = image.mode in ("1", "L", "LA")
    width, height = image.size
    if size is not None:
        # JPEG decodes several times faster at a fraction of its size; at twice the final size the
        # resampling below still determines the quality
        image.draft(None, (2 * size, 2 * size))
    is_transparent = _is_transparent(image)
    if is_transparent and background is not None:
        plain = _put_on(image, background)
    else:
        # through RGBA: Pillow warns about palettes with a transparent color
        plain = image.convert("RGBA") if "transparency" in image.info else image
    becomes_gray = is_gray if channels is None else channels == 1
    plain = plain.convert("L" if becomes_gray else "RGB")
    if size is not None:
        plain = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    pixels: Tensor = pil_to_tensor(plain)
    return pixels, Original(width, height, is_gray, is_transparent)


def _is_transparent(image: Image.Image) -> bool:
    """Return whether one of the pixels is transparent, at least in part."""
    if not image.has_transparency_data:
        return False
    alpha = np.asarray(_with_alpha(image).getchannel("A"))
    return bool(alpha.min() < 255)


def _put_on(image: Image.Image, background: str) -> Image.Image:
    picture = _with_alpha(image)
    color = ImageColor.getrgb(background)
    return Image.alpha_composite(Image.new("RGBA", picture.size, color), picture)


def _with_alpha(image: Image.Image) -> Image.Image:
    """Convert to RGBA, with the transparent color of a PNG file in the scale of its pixels."""
    if image.format != "PNG" or "transparency" not in image.info:
        return image.convert("RGBA")
    tile = getattr(image, "tile", None)  # empty once the pixels are loaded
    scale = _TRANSPARENT_COLOR_SCALES.get(tile[0].args) if tile else None
    if scale is not None:
        color = image.info["transparency"]
        values = color if isinstance(color, tuple) else (color,)
        scaled = tuple(int(value * scale) for value in values)
        image.info["transparency"] = scaled if isinstance(color, tuple) else scaled[0]
    return image.convert("RGBA")


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
