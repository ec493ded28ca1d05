"""BatchNorm with residual and activation, backward."""

import triton
import triton.language as tl

from fedaux_pl.models.kernels.forward import CLAMP, SIZES

# where the backward pass finds which values the activation let pass
MASK_NONE = tl.constexpr(0)
MASK_FROM_INPUT = tl.constexpr(1)
MASK_FROM_OUTPUT = tl.constexpr(2)


@triton.jit
def _passes(z, upper, ACT: tl.constexpr):
    """Where the derivative of the activation is one; at the bounds it is zero."""
    inside = z > 0
    if ACT == CLAMP:
        inside = inside & (z < upper)
    return inside


@triton.jit
def _through_activation(
    dy,
    other,
    x,
    y,
    mean,
    scale,
    shift,
    offsets,
    keep,
    upper,
    ACT: tl.constexpr,
    MASK: tl.constexpr,
    TWO: tl.constexpr,
):
    """The gradient before the activation, and x - mean, of one tile."""
    dz = tl.load(dy + offsets, mask=keep, other=0.0).to(tl.float32)
    if TWO:
        dz += tl.load(other + offsets, mask=keep, other=0.0).to(tl.float32)
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
    other,
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
    TWO: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums of dz and of dz * (x - mean) / std over ``count`` rows."""
    in_cols = cols < channels
    scale = invstd * tl.load(weight + cols, mask=in_cols, other=0.0)
    shift = tl.load(bias + cols, mask=in_cols, other=0.0)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        dz, centred = _through_activation(
            dy, other, x, y, mean, scale, shift, offsets, keep, upper, ACT, MASK, TWO
        )
        sums += dz
        products += dz * centred
        if WRITE_DZ:
            tl.store(dz_out + offsets, dz.to(dz_out.dtype.element_ty), mask=keep)
    return tl.sum(sums, 0), tl.sum(products, 0) * invstd


@triton.jit(do_not_specialize=SIZES)
def gradient_sums_kernel(
    dy,
    other,
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
    TWO: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """First of two kernels backward: the sums of each chunk, as (2, chunks, channels).

    With ``TWO`` the gradient of the output is the sum of two.
    """
    channels = units * UNIT
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_cols = cols < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    skip = start.to(tl.int64) * channels
    total, product = _gradient_sums(
        dy + skip,
        other + skip,
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
        TWO,
        WRITE_DZ,
        BLOCK_M,
        BLOCK_C,
        STAGES,
    )
    tl.store(partials + chunk * channels + cols, total, mask=in_cols)
    tl.store(partials + (chunks + chunk) * channels + cols, product, mask=in_cols)


@triton.jit(do_not_specialize=SIZES)
def input_gradient_kernel(
    dy,
    other,
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
    TWO: tl.constexpr,
    WRITE_DZ: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    STAGES: tl.constexpr,
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
            other,
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
            TWO,
            False,
            BLOCK_M,
            BLOCK_C,
            STAGES,
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
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        lines = first + tl.arange(0, BLOCK_M)
        keep = (lines < count)[:, None] & in_cols[None, :]
        offsets = lines[:, None] * channels + cols[None, :]
        dz, centred = _through_activation(
            dy + skip,
            other + skip,
            x + skip,
            y + skip,
            mean,
            scale,
            shift,
            offsets,
            keep,
            upper,
            ACT,
            MASK,
            TWO,
        )
        if WRITE_DZ:
            tl.store(dz_out + skip + offsets, dz.to(dz_out.dtype.element_ty), mask=keep)
        gradient = scale[None, :] * (dz - constant[None, :] - centred * slope[None, :])
        tl.store(dx + skip + offsets, gradient.to(dx.dtype.element_ty), mask=keep)
