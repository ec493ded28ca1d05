"""Standardized images and the stem, the first convolution of a network for small images.

The stem has 3x3 taps, stride 1 and padding 1. It is computed as matrix products on tensor cores,
(pixels, DEPTH) times (DEPTH, output channels).
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import _activate

# A row of three taps reads three pixels of 8 channels, 24 contiguous values. Tensor cores take 32,
# so the rest are zeros.
DEPTH = tl.constexpr(32)
ROW_DEPTH = tl.constexpr(24)


@triton.jit
def standardize_kernel(
    images, out, mean, std,
    pixels, area, channels,
    image_stride, channel_stride, pixel_stride, mean_stride, std_stride, divisor,
    PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(x / divisor - mean) / std of images, channels last and padded with zeros.

    A program processes BLOCK pixels with all their channels. ``area`` is H * W.
    """
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)[None, :]
    image = (pixel // area).to(tl.int64)
    offsets = image * image_stride + (pixel % area) * pixel_stride
    mask = (pixel < pixels)[:, None] & (channel < channels)
    values = tl.load(images + offsets[:, None] + channel * channel_stride, mask=mask, other=0).to(
        tl.float32
    )
    channel_mean = tl.load(mean + channel * mean_stride, mask=channel < channels, other=0.0)
    channel_std = tl.load(std + channel * std_stride, mask=channel < channels, other=1.0)
    values = tl.where(mask, (values / divisor - channel_mean) / channel_std, 0.0)
    target = out + pixel.to(tl.int64)[:, None] * PADDED + channel
    tl.store(target, values.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def _load_tap_row(images, pixel_in_chunk, x, y, height, width, k, down: tl.constexpr):
    """The inputs of one row of taps, ``down`` rows below each pixel, as (pixels, DEPTH)."""
    row = y + down
    column = x[:, None] + (k // 8)[None, :] - 1
    mask = ((row >= 0) & (row < height))[:, None] & (column >= 0) & (column < width)
    offsets = (pixel_in_chunk + down * width)[:, None] * 8 + (k - 8)[None, :]
    return tl.load(images + offsets, mask=mask & (k < ROW_DEPTH)[None, :], other=0.0)


@triton.jit(do_not_specialize=["pixels", "height", "width", "chunk_pixels"])
def stem_kernel(
    images, weight, bias, out,
    pixels, height, width, chunk_pixels, upper,
    CHANNELS: tl.constexpr, ACT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """act(conv(images) + bias) of channels-last images.

    Images are (N, H, W, 8), the weight is (CHANNELS, 3, 3, 8) and the result (N, H, W, CHANNELS). A
    program processes a chunk of pixels with all output channels and keeps the weight in registers.
    Each pixel is read nine times, from the cache; most memory traffic is the result. A pixel is the
    sum of three products, of the upper, middle and lower row of taps, in this order.
    """
    channel = tl.arange(0, BLOCK_C)
    channel_mask = channel < CHANNELS
    k = tl.arange(0, DEPTH)
    taps = weight + channel[None, :] * (3 * ROW_DEPTH) + k[:, None]
    tap_mask = (k < ROW_DEPTH)[:, None] & channel_mask[None, :]
    top = tl.load(taps, mask=tap_mask, other=0.0)
    middle = tl.load(taps + ROW_DEPTH, mask=tap_mask, other=0.0)
    bottom = tl.load(taps + 2 * ROW_DEPTH, mask=tap_mask, other=0.0)
    if HAS_BIAS:
        shift = tl.load(bias + channel, mask=channel_mask, other=0.0).to(tl.float32)
    start = tl.program_id(0) * chunk_pixels
    count = tl.minimum(chunk_pixels, pixels - start)
    images += start.to(tl.int64) * 8
    out += start.to(tl.int64) * CHANNELS
    for first in range(0, count, BLOCK_M):
        pixel_in_chunk = first + tl.arange(0, BLOCK_M)
        pixel_mask = pixel_in_chunk < count
        x = (start + pixel_in_chunk) % width
        # row -2 has no tap in the image
        y = tl.where(pixel_mask, (start + pixel_in_chunk) // width % height, -2)
        z = tl.dot(_load_tap_row(images, pixel_in_chunk, x, y, height, width, k, -1), top)
        z = tl.dot(_load_tap_row(images, pixel_in_chunk, x, y, height, width, k, 0), middle, z)
        z = tl.dot(_load_tap_row(images, pixel_in_chunk, x, y, height, width, k, 1), bottom, z)
        if HAS_BIAS:
            z = z + shift[None, :]
        z = _activate(z, upper, ACT)
        target = out + pixel_in_chunk[:, None] * CHANNELS + channel[None, :]
        mask = pixel_mask[:, None] & channel_mask[None, :]
        tl.store(target, z.to(out.dtype.element_ty), mask=mask)
