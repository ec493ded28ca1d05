"""1x1 convolutions as matrix products, with what follows them in the same kernel.

For predictions these are bias, residual and activation, in training the moments for BatchNorm.
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import (
    _activate,
    _finish_moments,
    _store_moments,
)


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
        a = tl.load(
            x + start * IN + pixel[:, None] * IN + k[None, :],
            mask=pixel_mask[:, None] & (k < IN)[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            weight + k[:, None] + (channel * LD)[None, :],
            mask=(k < IN)[:, None] & channel_mask[None, :], other=0.0,
        )  # fmt: skip
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
    """x @ weight.T, and the moments of each chunk of the output, (2, chunks, channels).

    A program loads the weights of BLOCK_N channels once and computes these channels of a chunk of
    pixels; the grid is (channel blocks, chunks). Numbers of channels are multiples of ``UNIT``, see
    ``batch_norm_kernels``; there are at most BLOCK_K input channels. ``WARPS`` is the number of
    warps, and BLOCK_M a multiple of 16 * WARPS.
    """
    in_channels = in_units * UNIT
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel_mask = channel < channels
    k = tl.arange(0, BLOCK_K)
    k_mask = k < in_channels
    chunk = tl.program_id(1)
    start = chunk * chunk_pixels
    count = tl.minimum(chunk_pixels, pixels - start)
    x += start.to(tl.int64) * in_channels
    y += start.to(tl.int64) * channels
    b = tl.load(
        weight + k[:, None] + (channel * in_channels)[None, :],
        mask=k_mask[:, None] & channel_mask[None, :], other=0.0,
    )  # fmt: skip
    # moments are shifted by the chunk's first output, because sums of squares would cancel
    first_pixel = tl.load(x + k, mask=k_mask, other=0.0).to(tl.float32)
    shift = tl.sum(first_pixel[:, None] * b.to(tl.float32), 0)
    sums = tl.zeros((8 * WARPS, BLOCK_N), tl.float32)
    squares = tl.zeros((8 * WARPS, BLOCK_N), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        pixel = first + tl.arange(0, BLOCK_M)
        pixel_mask = pixel < count
        a = tl.load(
            x + pixel[:, None] * in_channels + k[None, :],
            mask=pixel_mask[:, None] & k_mask[None, :], other=0.0,
        )  # fmt: skip
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
    mean, m2 = _finish_moments(sums, squares, shift, count)
    _store_moments(mean, m2, partials, chunk, tl.num_programs(1), channels, channel)
