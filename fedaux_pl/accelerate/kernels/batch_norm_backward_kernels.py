"""BatchNorm with residual and activation, backward; grid and tiles as in the forward kernels.

With z = (x - mean) / std * weight + bias + residual and y = act(z), and sums over the rows:
dz = dy * act'(z), dbias = sum(dz), dweight = sum(dz * (x - mean) / std) and
dx = weight / std * (dz - dbias / rows - (x - mean) / std * dweight / rows).
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import CLAMP, SIZES, _parameters_of

# MASK, how act'(z) is computed: it is 1 everywhere, z is recomputed from x, or y was saved
MASK_NONE = tl.constexpr(0)
MASK_FROM_INPUT = tl.constexpr(1)
MASK_FROM_OUTPUT = tl.constexpr(2)


@triton.jit
def _is_inside_bounds(z, upper, ACT: tl.constexpr):
    """Whether the derivative of the activation is 1; outside and at the bounds it is 0."""
    inside = z > 0
    if ACT == CLAMP:
        inside = inside & (z < upper)
    return inside


@triton.jit
def _load_dz(
    dy, dy2, x, y, mean, scale, shift, offsets, mask, upper,
    ACT: tl.constexpr, MASK: tl.constexpr, HAS_DY2: tl.constexpr,
):  # fmt: skip
    """The gradient dz before the activation, and x - mean, of one tile; 0 outside ``mask``.

    With ``HAS_DY2`` the gradient of the output is dy + dy2.
    """
    dz = tl.load(dy + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_DY2:
        dz += tl.load(dy2 + offsets, mask=mask, other=0.0).to(tl.float32)
    centered = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
    if MASK == MASK_FROM_INPUT:
        # rounded as the output was, so that the same values are at the bounds
        z = (centered * scale[None, :] + shift[None, :]).to(x.dtype.element_ty).to(tl.float32)
        dz = tl.where(_is_inside_bounds(z, upper, ACT), dz, 0.0)
    if MASK == MASK_FROM_OUTPUT:
        z = tl.load(y + offsets, mask=mask, other=0.0).to(tl.float32)
        dz = tl.where(_is_inside_bounds(z, upper, ACT), dz, 0.0)
    return dz, tl.where(mask, centered, 0.0)


@triton.jit(do_not_specialize=SIZES)
def gradient_sums_kernel(
    dy, dy2, x, y, dz_out, partials, statistics, weight, bias,
    rows, units, parameters, chunks, chunk_rows, upper,
    UNIT: tl.constexpr, GROUPS: tl.constexpr, ACT: tl.constexpr, MASK: tl.constexpr,
    HAS_DY2: tl.constexpr, WRITE_DZ: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First of two kernels: write the sums of each chunk to ``partials``, (2, chunks, channels).

    These are the sums of dz and of dz * (x - mean) / std. With ``WRITE_DZ`` it also writes dz.
    """
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channel < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    chunk_offset = start.to(tl.int64) * channels
    dy += chunk_offset
    dy2 += chunk_offset
    x += chunk_offset
    y += chunk_offset
    dz_out += chunk_offset
    mean = tl.load(statistics + channel, mask=channel_mask, other=0.0)
    invstd = tl.load(statistics + channels + channel, mask=channel_mask, other=0.0)
    index, parameter_mask = _parameters_of(channel, channels, parameters, GROUPS)
    scale = invstd * tl.load(weight + index, mask=parameter_mask, other=0.0)
    shift = tl.load(bias + index, mask=parameter_mask, other=0.0)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        mask = (row < count)[:, None] & channel_mask[None, :]
        offsets = row[:, None] * channels + channel[None, :]
        dz, centered = _load_dz(
            dy, dy2, x, y, mean, scale, shift, offsets, mask, upper, ACT, MASK, HAS_DY2
        )
        sums += dz
        products += dz * centered
        if WRITE_DZ:
            tl.store(dz_out + offsets, dz.to(dz_out.dtype.element_ty), mask=mask)
    tl.store(partials + chunk * channels + channel, tl.sum(sums, 0), mask=channel_mask)
    product = tl.sum(products, 0) * invstd
    tl.store(partials + (chunks + chunk) * channels + channel, product, mask=channel_mask)


@triton.jit(do_not_specialize=SIZES)
def input_gradient_kernel(
    dy, x, y, dx, partials, statistics, weight, bias, dweight, dbias,
    rows, units, parameters, chunks, chunk_rows, upper,
    UNIT: tl.constexpr, GROUPS: tl.constexpr, ACT: tl.constexpr, MASK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Second of two kernels: write dx, dweight and dbias."""
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channel < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    mean = tl.load(statistics + channel, mask=channel_mask, other=0.0)
    invstd = tl.load(statistics + channels + channel, mask=channel_mask, other=0.0)
    total = tl.zeros_like(mean)
    product = tl.zeros_like(mean)
    for first in range(0, chunks, BLOCK_P):
        partial = first + tl.arange(0, BLOCK_P)
        mask = (partial < chunks)[:, None] & channel_mask[None, :]
        offsets = partial[:, None] * channels + channel[None, :]
        total += tl.sum(tl.load(partials + offsets, mask=mask, other=0.0), 0)
        offsets += chunks * channels
        product += tl.sum(tl.load(partials + offsets, mask=mask, other=0.0), 0)
    index, parameter_mask = _parameters_of(channel, channels, parameters, GROUPS)
    tl.store(dweight + index, product, mask=parameter_mask & (chunk == 0))
    tl.store(dbias + index, total, mask=parameter_mask & (chunk == 0))

    scale = invstd * tl.load(weight + index, mask=parameter_mask, other=0.0)
    shift = tl.load(bias + index, mask=parameter_mask, other=0.0)
    constant = total / rows
    slope = product * invstd / rows
    chunk_offset = start.to(tl.int64) * channels
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        mask = (row < count)[:, None] & channel_mask[None, :]
        offsets = row[:, None] * channels + channel[None, :]
        dz, centered = _load_dz(
            dy + chunk_offset, dy, x + chunk_offset, y + chunk_offset,
            mean, scale, shift, offsets, mask, upper, ACT, MASK, False,
        )  # fmt: skip
        gradient = scale[None, :] * (dz - constant[None, :] - centered * slope[None, :])
        tl.store(dx + chunk_offset + offsets, gradient.to(dx.dtype.element_ty), mask=mask)
