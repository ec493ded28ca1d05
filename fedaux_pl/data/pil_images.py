"""Turns images of PIL into tensors, and puts transparent images on a background.

The pixels of opaque images must stay as they are, bit for bit, because the ledgers of real sites
recognize records by digests of their pixels.
"""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageColor, ImageOps
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from fedaux_pl.data.input_checks import note
from fedaux_pl.errors import check_setting, counted

WHITE = "white"
"""The default background of transparent pictures."""
# Pillow scales gray values of 2 and 4 bits and colors of 16 bits to 8 bits, but it does not scale
# the color that a PNG file declares transparent. These are the missing factors.
_TRANSPARENT_COLOR_SCALES = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}


class Original(NamedTuple):
    """The properties of a picture before it was decoded."""

    width: int
    height: int
    is_gray: bool
    is_transparent: bool  # whether a pixel is transparent, at least in part


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


def read_pil(
    image: Image.Image,
    channels: int | None = None,
    size: int | None = None,
    background: str | None = WHITE,
) -> tuple[Tensor, Original]:
    """Return the pixels of a PIL image, uint8 of shape (C, H, W), and its former properties.

    An image with more than 8 bits per channel raises a ValueError.

    Args:
        image: The image.
        channels: 3 for color, 1 for gray; None to keep the channels of the image.
        size: The height and width to which the central square is scaled; None for the whole image.
        background: The color on which a transparent picture is put. None drops the alpha channel,
            which shows the pixels beneath: version 1 read pictures in this way.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode!r})")
    is_gray = image.mode in ("1", "L", "LA")
    width, height = image.size
    if size is not None:
        # A JPEG is decoded several times faster at a fraction of its size. At twice the final size
        # the quality still depends only on the resampling below.
        image.draft(None, (2 * size, 2 * size))
    has_holes = is_transparent(image)
    if has_holes and background is not None:
        plain = _put_on(image, background)
    else:
        # through RGBA, because Pillow warns about palettes with a transparent color
        plain = image.convert("RGBA") if "transparency" in image.info else image
    becomes_gray = is_gray if channels is None else channels == 1
    plain = plain.convert("L" if becomes_gray else "RGB")
    if size is not None:
        plain = ImageOps.fit(plain, (size, size), method=Image.Resampling.BILINEAR)
    pixels: Tensor = pil_to_tensor(plain)
    return pixels, Original(width, height, is_gray, has_holes)


def is_transparent(image: Image.Image) -> bool:
    """Return whether at least one pixel is transparent, at least in part."""
    if not image.has_transparency_data:
        return False
    alpha = np.asarray(_with_alpha(image).getchannel("A"))
    return bool(alpha.min() < 255)


def _put_on(image: Image.Image, background: str) -> Image.Image:
    """Put a transparent picture on a background."""
    picture = _with_alpha(image)
    color = ImageColor.getrgb(background)
    return Image.alpha_composite(Image.new("RGBA", picture.size, color), picture)


def _with_alpha(image: Image.Image) -> Image.Image:
    """Convert to RGBA; first scale the transparent color of a PNG file as its pixels."""
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


def note_transparent(count: int, total: int, where: str, background: str) -> None:
    """Print a note about transparent pictures, if there are any, in the place ``where``."""
    if count:
        verb, subject = ("is", "it was") if count == 1 else ("are", "they were")
        note(
            f"{count:,} of {counted(total, 'picture')} {verb} transparent: {subject} put on a "
            f"{background} background ({where})"
        )
