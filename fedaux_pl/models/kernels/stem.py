"""The first convolution of a network for small images."""

import triton
import triton.language as tl

from fedaux_pl.models.kernels.forward import _activate

# A row of taps reads three neighbouring pixels, which are 24 values in a row; a tile of 32 is what
# tensor cores take, and its last eight are zeros. Of planes, all nine taps of three take 27.
DEPTH = tl.constexpr(32)
WANTED = tl.constexpr(24)


@triton.jit
def _seen(images, lines, x, y, height, width, k, down: tl.constexpr):
    """What a row of taps sees from each pixel, ``down`` rows below it, as (pixels, DEPTH)."""
    row = y + down
    column = x[:, None] + (k // 8)[None, :] - 1
    keep = ((row >= 0) & (row < height))[:, None] & (column >= 0) & (column < width)
    offsets = (lines + down * width)[:, None] * 8 + (k - 8)[None, :]
    return tl.load(images + offsets, mask=keep & (k < WANTED)[None, :], other=0.0)


@triton.jit(do_not_specialize=["pixels", "height", "width", "chunk_pixels"])
def stem_kernel(
    images,
    weight,
    bias,
    out,
    pixels,
    height,
    width,
    chunk_pixels,
    CHANNELS: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """act(conv(images) + bias) for 3x3 taps, stride 1 and padding 1.

    Images are (N, H, W, 8), the weight is (CHANNELS, 3, 3, 8) and the result (N, H, W, CHANNELS). A
    program takes a chunk of pixels and has the weight at hand all the while; that each pixel is
    read nine times is the cache's business, so that in memory there is little but the result.
    """
    cols = tl.arange(0, BLOCK_C)
    in_cols = cols < CHANNELS
    k = tl.arange(0, DEPTH)
    taps = weight + cols[None, :] * (3 * WANTED) + k[:, None]
    in_taps = (k < WANTED)[:, None] & in_cols[None, :]
    above = tl.load(taps, mask=in_taps, other=0.0)
    level = tl.load(taps + WANTED, mask=in_taps, other=0.0)
    below = tl.load(taps + 2 * WANTED, mask=in_taps, other=0.0)
    if HAS_BIAS:
        shift = tl.load(bias + cols, mask=in_cols, other=0.0).to(tl.float32)
    start = tl.program_id(0) * chunk_pixels
    count = tl.minimum(chunk_pixels, pixels - start)
    images += start.to(tl.int64) * 8
    out += start.to(tl.int64) * CHANNELS
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        inside = lines < count
        x = (start + lines) % width
        # beyond the last pixel there is none that any tap could see
        y = tl.where(inside, (start + lines) // width % height, -2)
        z = tl.dot(_seen(images, lines, x, y, height, width, k, -1), above)
        z = tl.dot(_seen(images, lines, x, y, height, width, k, 0), level, z)
        z = tl.dot(_seen(images, lines, x, y, height, width, k, 1), below, z)
        if HAS_BIAS:
            z = z + shift[None, :]
        z = _activate(z, 0.0, ACT)
        target = out + lines[:, None] * CHANNELS + cols[None, :]
        keep = inside[:, None] & in_cols[None, :]
        tl.store(target, z.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["pixels", "height", "width", "chunk_pixels"])
def planar_stem_kernel(
    images,
    weight,
    bias,
    out,
    pixels,
    height,
    width,
    chunk_pixels,
    PLANES: tl.constexpr,
    CHANNELS: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The same of images (N, PLANES, H, W), at most three planes, by one product a tile.

    The weight is (CHANNELS, 3, 3, 8) here too.
    """
    cols = tl.arange(0, BLOCK_C)
    in_cols = cols < CHANNELS
    k = tl.arange(0, DEPTH)
    plane, tap = k // 9, k % 9
    down, right = tap // 3 - 1, tap % 3 - 1
    wanted = k < 9 * PLANES
    taps = weight + cols[None, :] * (3 * WANTED) + (tap * 8 + plane)[:, None]
    seen = tl.load(taps, mask=wanted[:, None] & in_cols[None, :], other=0.0)
    if HAS_BIAS:
        shift = tl.load(bias + cols, mask=in_cols, other=0.0).to(tl.float32)
    start = tl.program_id(0) * chunk_pixels
    count = tl.minimum(chunk_pixels, pixels - start)
    area = height * width
    first_image = start // area
    images += first_image.to(tl.int64) * (PLANES * area)
    out += start.to(tl.int64) * CHANNELS
    moves = plane * area + down * width + right
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        inside = lines < count
        pixel = start + lines
        image = pixel // area
        x = pixel % width
        y = tl.where(inside, pixel // width % height, -2)
        column = x[:, None] + right[None, :]
        row = y[:, None] + down[None, :]
        keep = (row >= 0) & (row < height) & (column >= 0) & (column < width) & wanted[None, :]
        origin = (image - first_image) * (PLANES * area) + pixel - image * area
        values = tl.load(images + origin[:, None] + moves[None, :], mask=keep, other=0.0)
        z = tl.dot(values, seen)
        if HAS_BIAS:
            z = z + shift[None, :]
        z = _activate(z, 0.0, ACT)
        target = out + lines[:, None] * CHANNELS + cols[None, :]
        tl.store(target, z.to(out.dtype.element_ty), mask=inside[:, None] & in_cols[None, :])
