"""BatchNorm with residual and activation, forward."""

import triton
import triton.language as tl

# kinds of activation
LINEAR = tl.constexpr(0)
RELU = tl.constexpr(1)
CLAMP = tl.constexpr(2)  # ReLU with an upper bound

SIZES = ["rows", "units", "chunks", "chunk_rows"]


@triton.jit
def _activate(z, upper, ACT: tl.constexpr):
    """Comparisons that are false for NaN, which therefore passes as it does in PyTorch."""
    if ACT != LINEAR:
        z = tl.where(z < 0, 0.0, z)
    if ACT == CLAMP:
        z = tl.where(z > upper, upper, z)
    return z


@triton.jit
def _moments(
    x,
    count,
    channels,
    cols,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Mean and sum of squared deviations of each channel over ``count`` rows.

    Sums are of differences to the first row, as squares of large values would cancel.
    """
    in_cols = cols < channels
    shift = tl.load(x + cols, mask=in_cols, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
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
    STAGES: tl.constexpr,
):
    """Y = act((x - mean) / std * weight + bias + residual) for ``count`` rows."""
    in_cols = cols < channels
    scale = invstd * tl.load(weight + cols, mask=in_cols, other=0.0)
    shift = tl.load(bias + cols, mask=in_cols, other=0.0)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        z = tl.load(x + offsets, mask=keep, other=0.0).to(tl.float32)
        z = (z - mean[None, :]) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + offsets, mask=keep, other=0.0).to(tl.float32)
        tl.store(y + offsets, _activate(z, upper, ACT).to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=SIZES)
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
    STAGES: tl.constexpr,
):
    """First of two kernels forward: the moments of each chunk, as (2, chunks, channels)."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    x += start.to(tl.int64) * channels
    mean, m2 = _moments(x, count, channels, cols, BLOCK_M, BLOCK_C, STAGES)
    tl.store(partials + chunk * channels + cols, mean, mask=cols < channels)
    tl.store(partials + (chunks + chunk) * channels + cols, m2, mask=cols < channels)


@triton.jit(do_not_specialize=SIZES)
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
    STAGES: tl.constexpr,
):
    """Second of two kernels forward; or the only one, which sees all rows and needs no partials."""
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    if SINGLE:
        mean, m2 = _moments(x, count, channels, cols, BLOCK_M, BLOCK_C, STAGES)
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
        STAGES,
    )


@triton.jit(do_not_specialize=SIZES)
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
    STAGES: tl.constexpr,
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
        STAGES,
    )
