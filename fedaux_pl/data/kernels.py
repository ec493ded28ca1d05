"""A Triton kernel that makes views of images, from the crop to the last change of colour.

It does what ``crop`` and ``colour`` do, in registers; their comments explain the arithmetic. This
module needs triton, so that it is imported where the kernel is used and nowhere else.
"""

import triton
import triton.language as tl

from fedaux_pl.data import colour

RED = tl.constexpr(colour.RED)
GREEN = tl.constexpr(colour.GREEN)
BLUE = tl.constexpr(colour.BLUE)


@triton.jit
def _neighbours(position, start, extent, size):
    """The pixels next to an output pixel along one side of the image, and the second one's weight.

    The box is ``extent`` pixels from ``start`` on, stretched over ``size`` output pixels. No pixel
    outside the image is named, whatever the box.
    """
    inside = tl.maximum((position + 0.5) * tl.div_rn(extent, size.to(tl.float32)) - 0.5, 0.0)
    place = tl.minimum(inside, extent - 1.0) + start
    place = tl.minimum(tl.maximum(place, 0.0), size - 1.0)
    first = place.to(tl.int32)
    return first, tl.minimum(first + 1, size - 1), place - first


@triton.jit
def _interpolated(upper, lower, left, right, down, across, scale):
    """One channel between four pixels, times a scale and within [0, 1]."""
    top_left = tl.load(upper + left).to(tl.float32)
    top_right = tl.load(upper + right).to(tl.float32)
    bottom_left = tl.load(lower + left).to(tl.float32)
    bottom_right = tl.load(lower + right).to(tl.float32)
    top = top_left * (1 - across) + top_right * across
    bottom = bottom_left * (1 - across) + bottom_right * across
    return _clamped((top * (1 - down) + bottom * down) * scale)


@triton.jit
def _cropped(
    source,
    pixel,
    top,
    left,
    rows,
    columns,
    mirrored,
    scale,
    height,
    width,
    channel_stride,
    row_stride,
    column_stride,
    CHANNELS: tl.constexpr,
):
    """Red, green and blue of a crop's pixels, mirrored and scaled; of one channel, thrice that."""
    column = pixel % width
    column = tl.where(mirrored, width - 1 - column, column)
    above, below, down = _neighbours(pixel // width, top, rows, height)
    before, after, across = _neighbours(column, left, columns, width)
    upper = source + above * row_stride
    lower = source + below * row_stride
    before *= column_stride
    after *= column_stride
    red = _interpolated(upper, lower, before, after, down, across, scale)
    green = red
    blue = red
    if CHANNELS == 3:
        upper += channel_stride
        lower += channel_stride
        green = _interpolated(upper, lower, before, after, down, across, scale)
        upper += channel_stride
        lower += channel_stride
        blue = _interpolated(upper, lower, before, after, down, across, scale)
    return red, green, blue


@triton.jit
def _clamped(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _blended(base, x, factor):
    """Base at factor 0, x at 1, and past it above 1."""
    return _clamped(x - (1 - factor) * (x - base))


@triton.jit
def _luma(red, green, blue):
    return red * RED + green * GREEN + blue * BLUE


@triton.jit
def _turned(hue, own, high, chroma):
    """A channel, by the distance of the hue from the channel's own colour."""
    distance = tl.abs(tl.abs(tl.abs(hue - own) - 3) - 3)
    return high - _clamped(distance - 1) * chroma


@triton.jit(
    do_not_specialize=[
        "count",
        "height",
        "width",
        "image_stride",
        "channel_stride",
        "row_stride",
        "column_stride",
    ],
    # of all these single numbers are read, and a batch of another size should compile nothing
    do_not_specialize_on_alignment=[
        "images",
        "box_top",
        "box_left",
        "box_height",
        "box_width",
        "flip",
        "brightness",
        "contrast",
        "saturation",
        "hue",
        "grayscale",
    ],
)
def views_kernel(
    images,
    out,
    box_top,
    box_left,
    box_height,
    box_width,
    flip,
    brightness,
    contrast,
    saturation,
    hue,
    grayscale,
    count,
    height,
    width,
    image_stride,
    channel_stride,
    row_stride,
    column_stride,
    divisor,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One view of an image, one program each; view v shows image v modulo ``count``.

    Contrast needs the mean of the crop, for which the crop is made a first time.
    """
    view = tl.program_id(0)
    source = images + (view % count).to(tl.int64) * image_stride
    area = height * width
    target = out + view.to(tl.int64) * CHANNELS * area
    top = tl.load(box_top + view).to(tl.float32)
    left = tl.load(box_left + view).to(tl.float32)
    rows = tl.load(box_height + view).to(tl.float32)
    columns = tl.load(box_width + view).to(tl.float32)
    mirrored = tl.load(flip + view) != 0
    scale = tl.load(brightness + view) / divisor
    contrast_factor = tl.load(contrast + view)

    grays = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        red, green, blue = _cropped(
            source,
            pixel,
            top,
            left,
            rows,
            columns,
            mirrored,
            scale,
            height,
            width,
            channel_stride,
            row_stride,
            column_stride,
            CHANNELS,
        )
        values = _luma(red, green, blue) if CHANNELS == 3 else red
        grays += tl.where(pixel < area, values, 0.0)
    mean = tl.sum(grays) / area

    for start in range(0, area, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        keep = pixel < area
        red, green, blue = _cropped(
            source,
            pixel,
            top,
            left,
            rows,
            columns,
            mirrored,
            scale,
            height,
            width,
            channel_stride,
            row_stride,
            column_stride,
            CHANNELS,
        )
        red = _blended(mean, red, contrast_factor)
        if CHANNELS == 3:
            green = _blended(mean, green, contrast_factor)
            blue = _blended(mean, blue, contrast_factor)

            values = _luma(red, green, blue)
            factor = tl.load(saturation + view)
            red = _blended(values, red, factor)
            green = _blended(values, green, factor)
            blue = _blended(values, blue, factor)

            high = tl.maximum(tl.maximum(red, green), blue)
            chroma = high - tl.minimum(tl.minimum(red, green), blue)
            angle = tl.where(green == high, blue - red + 2 * chroma, red - green + 4 * chroma)
            angle = tl.where(red == high, green - blue, angle) / tl.maximum(chroma, 1e-12)
            angle += 6 * tl.load(hue + view)
            red = _turned(angle, 0, high, chroma)
            green = _turned(angle, 2, high, chroma)
            blue = _turned(angle, 4, high, chroma)

            values = _luma(red, green, blue)
            gray = tl.load(grayscale + view) != 0
            red = tl.where(gray, values, red)
            tl.store(target + area + pixel, tl.where(gray, values, green), mask=keep)
            tl.store(target + 2 * area + pixel, tl.where(gray, values, blue), mask=keep)
        tl.store(target + pixel, red, mask=keep)
