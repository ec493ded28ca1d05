"""Random views of images in one kernel, which fuses the functions of ``fedaux_pl.data.views``."""

import triton
import triton.language as tl

from fedaux_pl.data import views as color

RED = tl.constexpr(color.RED)
GREEN = tl.constexpr(color.GREEN)
BLUE = tl.constexpr(color.BLUE)


@triton.jit
def _find_neighbors(position, start, extent, size):
    """The two input pixels, inside the image, next to an output pixel; the weight of the second."""
    in_box = tl.maximum((position + 0.5) * tl.div_rn(extent, size.to(tl.float32)) - 0.5, 0.0)
    source_position = tl.minimum(in_box, extent - 1.0) + start
    source_position = tl.minimum(tl.maximum(source_position, 0.0), size - 1.0)
    first = source_position.to(tl.int32)
    return first, tl.minimum(first + 1, size - 1), source_position - first


@triton.jit
def _interpolate(upper, lower, left, right, down, across, scale):
    """Interpolate one channel between four pixels, scale it and clamp it to [0, 1]."""
    top_left = tl.load(upper + left).to(tl.float32)
    top_right = tl.load(upper + right).to(tl.float32)
    bottom_left = tl.load(lower + left).to(tl.float32)
    bottom_right = tl.load(lower + right).to(tl.float32)
    top = top_left * (1 - across) + top_right * across
    bottom = bottom_left * (1 - across) + bottom_right * across
    return _clamp((top * (1 - down) + bottom * down) * scale)


@triton.jit
def _crop(
    source, pixel, top, left, rows, columns, is_flipped, scale,
    height, width, channel_stride, row_stride, column_stride, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Red, green and blue of pixels of the crop, flipped and scaled; all equal for gray images."""
    column = pixel % width
    column = tl.where(is_flipped, width - 1 - column, column)
    above, below, down = _find_neighbors(pixel // width, top, rows, height)
    before, after, across = _find_neighbors(column, left, columns, width)
    upper = source + above * row_stride
    lower = source + below * row_stride
    before *= column_stride
    after *= column_stride
    red = _interpolate(upper, lower, before, after, down, across, scale)
    green = red
    blue = red
    if CHANNELS == 3:
        upper += channel_stride
        lower += channel_stride
        green = _interpolate(upper, lower, before, after, down, across, scale)
        upper += channel_stride
        lower += channel_stride
        blue = _interpolate(upper, lower, before, after, down, across, scale)
    return red, green, blue


@triton.jit
def _clamp(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _blend(base, x, factor):
    """Interpolate from base (factor 0) to x (factor 1), extrapolate above 1, clamp to [0, 1]."""
    return _clamp(x - (1 - factor) * (x - base))


@triton.jit
def _compute_luma(red, green, blue):
    return red * RED + green * GREEN + blue * BLUE


@triton.jit
def _compute_channel(hue, channel_hue, high, chroma):
    """A color channel, by the distance of the hue from that of the channel."""
    distance = tl.abs(tl.abs(tl.abs(hue - channel_hue) - 3) - 3)
    return high - _clamp(distance - 1) * chroma


@triton.jit(
    do_not_specialize=[
        "count", "height", "width", "image_stride", "channel_stride", "row_stride", "column_stride",
    ],
    # only scalars are read from these, and another batch size must not compile a new variant
    do_not_specialize_on_alignment=[
        "images", "box_top", "box_left", "box_height", "box_width", "flip",
        "brightness", "contrast", "saturation", "hue", "grayscale",
    ],
)  # fmt: skip
def views_kernel(
    images, out,
    box_top, box_left, box_height, box_width, flip,
    brightness, contrast, saturation, hue, grayscale,
    count, height, width, image_stride, channel_stride, row_stride, column_stride, divisor,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program computes one view, (CHANNELS, height, width); view v is of image v % ``count``.

    The crop is computed twice: once for its mean, which contrast needs, once for the output.
    """
    view = tl.program_id(0)
    source = images + (view % count).to(tl.int64) * image_stride
    area = height * width
    target = out + view.to(tl.int64) * CHANNELS * area
    top = tl.load(box_top + view).to(tl.float32)
    left = tl.load(box_left + view).to(tl.float32)
    rows = tl.load(box_height + view).to(tl.float32)
    columns = tl.load(box_width + view).to(tl.float32)
    is_flipped = tl.load(flip + view) != 0
    scale = tl.load(brightness + view) / divisor
    contrast_factor = tl.load(contrast + view)

    luma_sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, area, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        red, green, blue = _crop(
            source, pixel, top, left, rows, columns, is_flipped, scale,
            height, width, channel_stride, row_stride, column_stride, CHANNELS,
        )  # fmt: skip
        values = _compute_luma(red, green, blue) if CHANNELS == 3 else red
        luma_sums += tl.where(pixel < area, values, 0.0)
    mean = tl.sum(luma_sums) / area

    for start in range(0, area, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        mask = pixel < area
        red, green, blue = _crop(
            source, pixel, top, left, rows, columns, is_flipped, scale,
            height, width, channel_stride, row_stride, column_stride, CHANNELS,
        )  # fmt: skip
        red = _blend(mean, red, contrast_factor)
        if CHANNELS == 3:
            green = _blend(mean, green, contrast_factor)
            blue = _blend(mean, blue, contrast_factor)

            values = _compute_luma(red, green, blue)
            factor = tl.load(saturation + view)
            red = _blend(values, red, factor)
            green = _blend(values, green, factor)
            blue = _blend(values, blue, factor)

            high = tl.maximum(tl.maximum(red, green), blue)
            chroma = high - tl.minimum(tl.minimum(red, green), blue)
            angle = tl.where(green == high, blue - red + 2 * chroma, red - green + 4 * chroma)
            angle = tl.where(red == high, green - blue, angle) / tl.maximum(chroma, 1e-12)
            angle += 6 * tl.load(hue + view)
            red = _compute_channel(angle, 0, high, chroma)
            green = _compute_channel(angle, 2, high, chroma)
            blue = _compute_channel(angle, 4, high, chroma)

            values = _compute_luma(red, green, blue)
            gray = tl.load(grayscale + view) != 0
            red = tl.where(gray, values, red)
            tl.store(target + area + pixel, tl.where(gray, values, green), mask=mask)
            tl.store(target + 2 * area + pixel, tl.where(gray, values, blue), mask=mask)
        tl.store(target + pixel, red, mask=mask)
