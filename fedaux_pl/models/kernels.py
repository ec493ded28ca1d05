"""Triton kernels of a convolution's surroundings: BatchNorm, residual and activation in one.

PyTorch's BatchNorm of channels-last half precision reaches a tenth of a GPU's bandwidth, and the
activation and the residual are further passes over the same values. Activations are seen here as
(rows, channels) with rows = N*H*W and the channels next to each other in memory. A program takes a
block of channels and a chunk of rows, and whatever is summed is summed in a fixed order and
without atomics, so that results can be repeated.

``channels`` is given as ``units * UNIT`` with a power of two ``UNIT`` that is known to the
compiler, because only then does it use wide memory accesses; ``units`` itself and the number of
rows are not specialised on, so that a network compiles a handful of variants.

This module needs triton, so that it is imported where a kernel is used and nowhere else.
"""

import triton
import triton.language as tl

# kinds of activation, and where the backward pass finds which values it let pass
LINEAR = tl.constexpr(0)
RELU = tl.constexpr(1)
CLAMP = tl.constexpr(2)  # ReLU with an upper bound
MASK_NONE = tl.constexpr(0)
MASK_FROM_INPUT = tl.constexpr(1)
MASK_FROM_OUTPUT = tl.constexpr(2)

_SIZES = ["rows", "units", "chunks", "chunk_rows"]


@triton.jit
def _activate(z, upper, ACT: tl.constexpr):
    """Comparisons that are false for NaN, which therefore passes as it does in PyTorch."""
    if ACT != LINEAR:
        z = tl.where(z < 0, 0.0, z)
    if ACT == CLAMP:
        z = tl.where(z > upper, upper, z)
    return z


@triton.jit
def _passes(z, upper, ACT: tl.constexpr):
    """Where the derivative of the activation is one; at the bounds it is zero."""
    inside = z > 0
    if ACT == CLAMP:
        inside = inside & (z < upper)
    return inside


@triton.jit
def _moments(x, count, channels, cols, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean and sum of squared deviations of each channel over ``count`` rows.

    Sums are of differences to the first row, as squares of large values would cancel.
    """
    in_cols = cols < channels
    shift = tl.load(x + cols, mask=in_cols, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        tile = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
        difference = tl.where(keep, tile - shift[None, :], 0.0)
        sums += difference
        squares += difference * difference
    total = tl.sum(sums, 0)
    offset = total / count
    return shift + offset, tl.maximum(tl.sum(squares, 0) - total * offset, 0.0)


@triton.jit
def _merge_moments(partials, rows, chunks, chunk_rows, channels, cols, BLOCK_P: tl.constexpr):
    """The same over all rows, from the moments of the chunks (Chan, Golub and LeVeque 1979)."""
    in_cols = cols < channels
    shift = tl.load(partials + cols, mask=in_cols, other=0.0)
    total = tl.zeros_like(shift)
    squares = tl.zeros_like(shift)
    for first in range(0, chunks, BLOCK_P):
        chunk = first + tl.arange(0, BLOCK_P)
        keep = (chunk < chunks)[:, None] & in_cols[None, :]
        offsets = chunk[:, None] * channels + cols[None, :]
        means = tl.load(partials + offsets, mask=keep, other=0.0)
        within = tl.load(partials + chunks * channels + offsets, mask=keep, other=0.0)
        counts = tl.minimum(chunk_rows, rows - chunk * chunk_rows).to(tl.float32)[:, None]
        difference = tl.where(keep, means - shift[None, :], 0.0)
        total += tl.sum(counts * difference, 0)
        squares += tl.sum(within + counts * difference * difference, 0)
    offset = total / rows
    return shift + offset, tl.maximum(squares - total * offset, 0.0)


@triton.jit
def _keep_statistics(
    mean, m2, saved, running_mean, running_var, batches, rows, channels, cols, momentum, eps, first
):
    """What a training step of BatchNorm leaves behind; returns 1 / sqrt(variance + eps).

    Of the programs of a block of channels only the ``first`` one writes.
    """
    in_cols = cols < channels
    invstd = 1.0 / tl.sqrt(m2 / rows + eps)
    write = in_cols & first
    tl.store(saved + cols, mean, mask=write)
    tl.store(saved + channels + cols, invstd, mask=write)
    old_mean = tl.load(running_mean + cols, mask=write, other=0.0)
    old_var = tl.load(running_var + cols, mask=write, other=0.0)
    tl.store(running_mean + cols, (1 - momentum) * old_mean + momentum * mean, mask=write)
    unbiased = m2 / (rows - 1)
    tl.store(running_var + cols, (1 - momentum) * old_var + momentum * unbiased, mask=write)
    if first & (tl.program_id(0) == 0):
        tl.store(batches, tl.load(batches) + 1)
    return invstd


@triton.jit
def _normalize(
    x,
    residual,
    y,
    mean,
    invstd,
    weight,
    bias,
    count,
    channels,
    cols,
    upper,
    ACT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Y = act((x - mean) / std * weight + bias + residual) for ``count`` rows."""
    in_cols = cols < channels
    scale = invstd * tl.load(weight + cols, mask=in_cols, other=0.0)
    shift = tl.load(bias + cols, mask=in_cols, other=0.0)
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        z = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
        z = (z - mean[None, :]) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + offsets, mask=keep, other=0.0).to(tl.float32)
        tl.store(y + offsets, _activate(z, upper, ACT).to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=_SIZES)
def moments_kernel(
    x,
    partials,
    rows,
    units,
    chunks,
    chunk_rows,
    UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """First of two kernels forward: the moments of each chunk, as (2, chunks, channels)."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    x += start.to(tl.int64) * channels
    mean, m2 = _moments(x, count, channels, cols, BLOCK_M, BLOCK_C)
    tl.store(partials + chunk * channels + cols, mean, mask=cols < channels)
    tl.store(partials + (chunks + chunk) * channels + cols, m2, mask=cols < channels)


@triton.jit(do_not_specialize=_SIZES)
def normalize_kernel(
    x,
    residual,
    y,
    partials,
    saved,
    weight,
    bias,
    running_mean,
    running_var,
    batches,
    rows,
    units,
    chunks,
    chunk_rows,
    momentum,
    eps,
    upper,
    UNIT: tl.constexpr,
    ACT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Second of two kernels forward; or the only one, which sees all rows and needs no partials."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    if SINGLE:
        mean, m2 = _moments(x, count, channels, cols, BLOCK_M, BLOCK_C)
    else:
        mean, m2 = _merge_moments(partials, rows, chunks, chunk_rows, channels, cols, BLOCK_P)
    invstd = _keep_statistics(
        mean,
        m2,
        saved,
        running_mean,
        running_var,
        batches,
        rows,
        channels,
        cols,
        momentum,
        eps,
        tl.program_id(1) == 0,
    )
    skip = start.to(tl.int64) * channels
    _normalize(
        x + skip,
        residual + skip,
        y + skip,
        mean,
        invstd,
        weight,
        bias,
        count,
        channels,
        cols,
        upper,
        ACT,
        HAS_RESIDUAL,
        BLOCK_M,
    )


@triton.jit(do_not_specialize=_SIZES)
def apply_kernel(
    x,
    residual,
    y,
    weight,
    bias,
    running_mean,
    running_var,
    rows,
    units,
    chunk_rows,
    eps,
    upper,
    UNIT: tl.constexpr,
    ACT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The same by the running statistics, for evaluation."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    skip = start.to(tl.int64) * channels
    mean = tl.load(running_mean + cols, mask=cols < channels, other=0.0)
    variance = tl.load(running_var + cols, mask=cols < channels, other=1.0)
    _normalize(
        x + skip,
        residual + skip,
        y + skip,
        mean,
        1.0 / tl.sqrt(variance + eps),
        weight,
        bias,
        tl.minimum(chunk_rows, rows - start),
        channels,
        cols,
        upper,
        ACT,
        HAS_RESIDUAL,
        BLOCK_M,
    )


@triton.jit
def _through_activation(
    dy, x, y, mean, scale, shift, offsets, keep, upper, ACT: tl.constexpr, MASK: tl.constexpr
):
    """The gradient before the activation, and x - mean, of one tile."""
    dz = tl.load(dy + offsets, mask=keep, other=0.0).to(tl.float32)
    centred = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32) - mean[None, :]
    if MASK == MASK_FROM_INPUT:
        # rounded as the output was, so that the bounds are met where they were met forward
        z = (centred * scale[None, :] + shift[None, :]).to(x.dtype.element_ty).to(tl.float32)
        dz = tl.where(_passes(z, upper, ACT), dz, 0.0)
    if MASK == MASK_FROM_OUTPUT:
        z = tl.load(y + offsets, mask=keep, other=0.0).to(tl.float32)
        dz = tl.where(_passes(z, upper, ACT), dz, 0.0)
    return dz, tl.where(keep, centred, 0.0)


@triton.jit
def _gradient_sums(
    dy,
    x,
    y,
    dz_out,
    mean,
    invstd,
    weight,
    bias,
    count,
    channels,
    cols,
    upper,
    ACT: tl.constexpr,
    MASK: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums of dz and of dz * (x - mean) / std over ``count`` rows."""
    in_cols = cols < channels
    scale = invstd * tl.load(weight + cols, mask=in_cols, other=0.0)
    shift = tl.load(bias + cols, mask=in_cols, other=0.0)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        dz, centred = _through_activation(
            dy, x, y, mean, scale, shift, offsets, keep, upper, ACT, MASK
        )
        sums += dz
        products += dz * centred
        if WRITE_DZ:
            tl.store(dz_out + offsets, dz.to(dz_out.dtype.element_ty), mask=keep)
    return tl.sum(sums, 0), tl.sum(products, 0) * invstd


@triton.jit(do_not_specialize=_SIZES)
def gradient_sums_kernel(
    dy,
    x,
    y,
    dz_out,
    partials,
    saved,
    weight,
    bias,
    rows,
    units,
    chunks,
    chunk_rows,
    upper,
    UNIT: tl.constexpr,
    ACT: tl.constexpr,
    MASK: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """First of two kernels backward: the sums of each chunk, as (2, chunks, channels)."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_cols = cols < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    skip = start.to(tl.int64) * channels
    total, product = _gradient_sums(
        dy + skip,
        x + skip,
        y + skip,
        dz_out + skip,
        tl.load(saved + cols, mask=in_cols, other=0.0),
        tl.load(saved + channels + cols, mask=in_cols, other=0.0),
        weight,
        bias,
        tl.minimum(chunk_rows, rows - start),
        channels,
        cols,
        upper,
        ACT,
        MASK,
        WRITE_DZ,
        BLOCK_M,
        BLOCK_C,
    )
    tl.store(partials + chunk * channels + cols, total, mask=in_cols)
    tl.store(partials + (chunks + chunk) * channels + cols, product, mask=in_cols)


@triton.jit(do_not_specialize=_SIZES)
def input_gradient_kernel(
    dy,
    x,
    y,
    dx,
    dz_out,
    partials,
    saved,
    weight,
    bias,
    dweight,
    dbias,
    rows,
    units,
    chunks,
    chunk_rows,
    upper,
    UNIT: tl.constexpr,
    ACT: tl.constexpr,
    MASK: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Second of two kernels backward; or the only one, which sees all rows."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_cols = cols < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    mean = tl.load(saved + cols, mask=in_cols, other=0.0)
    invstd = tl.load(saved + channels + cols, mask=in_cols, other=0.0)
    if SINGLE:
        total, product = _gradient_sums(
            dy,
            x,
            y,
            dz_out,
            mean,
            invstd,
            weight,
            bias,
            count,
            channels,
            cols,
            upper,
            ACT,
            MASK,
            False,
            BLOCK_M,
            BLOCK_C,
        )
    else:
        total = tl.zeros_like(mean)
        product = tl.zeros_like(mean)
        for first in range(0, chunks, BLOCK_P):
            parts = first + tl.arange(0, BLOCK_P)
            keep = (parts < chunks)[:, None] & in_cols[None, :]
            offsets = parts[:, None] * channels + cols[None, :]
            total += tl.sum(tl.load(partials + offsets, mask=keep, other=0.0), 0)
            offsets += chunks * channels
            product += tl.sum(tl.load(partials + offsets, mask=keep, other=0.0), 0)
    tl.store(dweight + cols, product, mask=in_cols & (chunk == 0))
    tl.store(dbias + cols, total, mask=in_cols & (chunk == 0))

    scale = invstd * tl.load(weight + cols, mask=in_cols, other=0.0)
    shift = tl.load(bias + cols, mask=in_cols, other=0.0)
    constant = total / rows
    slope = product * invstd / rows
    skip = start.to(tl.int64) * channels
    for first in range(0, count, BLOCK_M):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        dz, centred = _through_activation(
            dy + skip, x + skip, y + skip, mean, scale, shift, offsets, keep, upper, ACT, MASK
        )
        if WRITE_DZ:
            tl.store(dz_out + skip + offsets, dz.to(dz_out.dtype.element_ty), mask=keep)
        gradient = scale[None, :] * (dz - constant[None, :] - centred * slope[None, :])
        tl.store(dx + skip + offsets, gradient.to(dx.dtype.element_ty), mask=keep)


@triton.jit(
    do_not_specialize=["size", "in_channels", "out_stride", "in_stride", "tap_stride", "padded"]
)
def fold_kernel(
    weight,
    folded,
    folded_bias,
    gamma,
    beta,
    running_mean,
    running_var,
    size,
    in_channels,
    out_stride,
    in_stride,
    tap_stride,
    padded,
    eps,
    BLOCK: tl.constexpr,
):
    """A convolution's weight and bias with BatchNorm's in them, one program an output channel.

    The result is (channels, taps, padded), with zeros beyond ``in_channels``.
    """
    channel = tl.program_id(0)
    scale = tl.load(gamma + channel) / tl.sqrt(tl.load(running_var + channel) + eps)
    bias = tl.load(beta + channel) - tl.load(running_mean + channel) * scale
    tl.store(folded_bias + channel, bias.to(folded_bias.dtype.element_ty))
    for first in range(0, size, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        keep = offsets < size
        inner = offsets % padded
        source = channel * out_stride + inner * in_stride + offsets // padded * tap_stride
        values = tl.load(weight + source, mask=keep & (inner < in_channels), other=0.0) * scale
        target = folded + channel * size + offsets
        tl.store(target, values.to(folded.dtype.element_ty), mask=keep)


@triton.jit
def standardize_kernel(
    images,
    out,
    mean,
    std,
    pixels,
    area,
    channels,
    image_stride,
    channel_stride,
    pixel_stride,
    mean_stride,
    std_stride,
    divisor,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(x / divisor - mean) / std of images, channels last and padded with zeros."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)[None, :]
    image = (pixel // area).to(tl.int64)
    offsets = image * image_stride + (pixel % area) * pixel_stride
    keep = (pixel < pixels)[:, None] & (channel < channels)
    values = tl.load(images + offsets[:, None] + channel * channel_stride, mask=keep, other=0).to(
        tl.float32
    )
    centre = tl.load(mean + channel * mean_stride, mask=channel < channels, other=0.0)
    spread = tl.load(std + channel * std_stride, mask=channel < channels, other=1.0)
    values = tl.where(keep, (values / divisor - centre) / spread, 0.0)
    target = out + pixel.to(tl.int64)[:, None] * PADDED + channel
    tl.store(target, values.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])
