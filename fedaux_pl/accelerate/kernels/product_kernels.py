"""Convolutions as matrix products on tensor cores: the stem and 1x1 convolutions.

The stem, the first convolution of a network for small images, has 3x3 taps, stride 1 and padding 1.
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import _activate, _find_chunk, _store_moments

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
    """(x / divisor - mean) / std of images, channels last and padded with zeros; area is H * W."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)[None, :]
    image = (pixel // area).to(tl.int64)
    offsets = (image * image_stride + (pixel % area) * pixel_stride)[:, None]
    mask = (pixel < pixels)[:, None] & (channel < channels)
    values = tl.load(images + offsets + channel * channel_stride, mask=mask, other=0)
    channel_mean = tl.load(mean + channel * mean_stride, mask=channel < channels, other=0.0)
    channel_std = tl.load(std + channel * std_stride, mask=channel < channels, other=1.0)
    values = (values.to(tl.float32) / divisor - channel_mean) / channel_std
    target = out + pixel.to(tl.int64)[:, None] * PADDED + channel
    values = tl.where(mask, values, 0.0).to(out.dtype.element_ty)
    tl.store(target, values, mask=(pixel < pixels)[:, None])


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
    A pixel is the sum of three products, of the upper, middle and lower row of taps, in this order.
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


@triton.jit(do_not_specialize=["pixels"])
def pointwise_kernel(
    x, residual, y, weight, bias, pixels, upper,
    IN: tl.constexpr, OUT: tl.constexpr, PITCH: tl.constexpr, LD: tl.constexpr,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """act(x @ weight.T + bias + residual), where a row of ``y`` has PITCH values, OUT of them ours.

    The weight is (OUT, LD) with LD >= IN. Programs that run at the same time read the same pixels.
    """
    blocks: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N
    channel = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    channel_mask = channel < OUT
    start = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    pixel = tl.arange(0, BLOCK_M)
    pixel_mask = pixel < pixels - start
    z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, IN, BLOCK_K, num_stages=STAGES):
        k = first + tl.arange(0, BLOCK_K)
        values = x + start * IN + pixel[:, None] * IN + k[None, :]
        a = tl.load(values, mask=pixel_mask[:, None] & (k < IN)[None, :], other=0.0)
        weights = weight + k[:, None] + (channel * LD)[None, :]
        b = tl.load(weights, mask=(k < IN)[:, None] & channel_mask[None, :], other=0.0)
        z = tl.dot(a, b, z)
    z += tl.load(bias + channel, mask=channel_mask, other=0.0).to(tl.float32)[None, :]
    mask = pixel_mask[:, None] & channel_mask[None, :]
    if HAS_RESIDUAL:
        shortcut = residual + start * OUT + pixel[:, None] * OUT + channel[None, :]
        z += tl.load(shortcut, mask=mask, other=0.0).to(tl.float32)
    target = y + start * PITCH + pixel[:, None] * PITCH + channel[None, :]
    tl.store(target, _activate(z, upper, ACT).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["pixels", "in_units", "units", "chunk_pixels"])
def pointwise_moments_kernel(
    x, weight, y, partials, pixels, in_units, units, chunk_pixels,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x @ weight.T, and the moments of each chunk of the output, as in ``moments_kernel``.

    A program loads the weights of BLOCK_N channels once, for a chunk of pixels. There are at most
    BLOCK_K input channels, a multiple of ``UNIT``. BLOCK_M is a multiple of 16 * WARPS.
    """
    channels, channel, start, count = _find_chunk(pixels, units, chunk_pixels, UNIT, BLOCK_N)
    in_channels = in_units * UNIT
    channel_mask = channel < channels
    k = tl.arange(0, BLOCK_K)
    k_mask = k < in_channels
    x += start.to(tl.int64) * in_channels
    y += start.to(tl.int64) * channels
    weights = weight + k[:, None] + (channel * in_channels)[None, :]
    b = tl.load(weights, mask=k_mask[:, None] & channel_mask[None, :], other=0.0)
    # moments are shifted by the chunk's first output, because sums of squares would cancel
    first_pixel = tl.load(x + k, mask=k_mask, other=0.0).to(tl.float32)
    shift = tl.sum(first_pixel[:, None] * b.to(tl.float32), 0)
    sums = tl.zeros((8 * WARPS, BLOCK_N), tl.float32)
    squares = tl.zeros((8 * WARPS, BLOCK_N), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        pixel = first + tl.arange(0, BLOCK_M)
        pixel_mask = pixel < count
        values = x + pixel[:, None] * in_channels + k[None, :]
        a = tl.load(values, mask=pixel_mask[:, None] & k_mask[None, :], other=0.0)
        rounded = tl.dot(a, b).to(y.dtype.element_ty)
        mask = pixel_mask[:, None] & channel_mask[None, :]
        tl.store(y + pixel[:, None] * channels + channel[None, :], rounded, mask=mask)
        difference = tl.where(mask, rounded.to(tl.float32) - shift[None, :], 0.0)
        # A thread holds the rows r and r + 8 of the 16 rows that its warp multiplies at a time.
        # They are added at once, because a sum for each element of a tile takes more registers.
        parts = tl.reshape(difference, (BLOCK_M // (16 * WARPS), WARPS, 2, 8, BLOCK_N))
        sums += tl.reshape(tl.sum(tl.sum(parts, 0), 1), (8 * WARPS, BLOCK_N))
        parts *= parts
        squares += tl.reshape(tl.sum(tl.sum(parts, 0), 1), (8 * WARPS, BLOCK_N))
    chunks = tl.num_programs(1)
    _store_moments(sums, squares, shift, count, partials, chunks, channels, channel)
