"""BatchNorm with residual and activation, and its fold into a convolution.

Activations are a matrix (rows, channels) with N * H * W rows. The grid is (channel blocks, chunks):
a program processes ``BLOCK_C`` channels of ``chunk_rows`` rows, in tiles of (BLOCK_M, BLOCK_C).
``channels`` is ``units * UNIT`` with a compile-time power of two ``UNIT``, which the compiler needs
for wide memory accesses. Other sizes are not specialized on, so a network compiles few variants.
If ``GROUPS`` is 0, the layer has one parameter for each channel. Otherwise the activations are
those of a channel shuffle of ``parameters`` channels in ``GROUPS`` groups (1: in their order), and
further channels are padding: their outputs and gradients are zero.

With z = (x - mean) / std * weight + bias + residual and y = act(z), and sums over the rows:
dz = dy * act'(z), dbias = sum(dz), dweight = sum(dz * (x - mean) / std) and
dx = weight / std * (dz - dbias / rows - (x - mean) / std * dweight / rows).
"""

import triton
import triton.language as tl

# ACT, the activation
LINEAR = tl.constexpr(0)
RELU = tl.constexpr(1)
CLAMP = tl.constexpr(2)  # ReLU with an upper bound
# MASK, how act'(z) is computed: it is 1 everywhere, z is recomputed from x, or y was saved
MASK_NONE = tl.constexpr(0)
MASK_FROM_INPUT = tl.constexpr(1)
MASK_FROM_OUTPUT = tl.constexpr(2)

SIZES = ["rows", "units", "parameters", "chunks", "chunk_rows"]


@triton.jit
def _activate(z, upper, ACT: tl.constexpr):
    """Apply the activation. NaN passes, as in PyTorch."""
    if ACT != LINEAR:
        z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ACT == CLAMP:
        z = tl.minimum(z, upper, propagate_nan=tl.PropagateNan.ALL)
    return z


@triton.jit
def _find_chunk(rows, units, chunk_rows, UNIT: tl.constexpr, BLOCK_C: tl.constexpr):
    """The number of channels, the program's channels, its first row and its number of rows."""
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    return units * UNIT, channel, start, tl.minimum(chunk_rows, rows - start)


@triton.jit
def _find_tile(first, count, channel, channels, channel_mask, BLOCK_M: tl.constexpr):
    """The mask and the offsets of a tile, from row ``first`` of ``count`` rows on."""
    row = first + tl.arange(0, BLOCK_M)
    mask = (row < count)[:, None] & channel_mask[None, :]
    return mask, row[:, None] * channels + channel[None, :]


@triton.jit
def _store_moments(sums, squares, shift, count, partials, chunks, channels, channel):
    """Write a chunk's mean and sum of squared deviations, from sums over values - shift."""
    total = tl.sum(sums, 0)
    offset = total / count
    m2 = tl.sum(squares, 0) - total * offset  # rounding can make it negative; NaN passes
    m2 = tl.maximum(m2, 0.0, propagate_nan=tl.PropagateNan.ALL)
    mask = channel < channels
    chunk = tl.program_id(1)
    tl.store(partials + chunk * channels + channel, shift + offset, mask=mask)
    tl.store(partials + (chunks + chunk) * channels + channel, m2, mask=mask)


@triton.jit
def _parameters_of(channel, channels, parameters, GROUPS: tl.constexpr):
    """The indices of the channels' parameters, and which channels have any."""
    index = channel
    mask = channel < channels
    if GROUPS > 0:
        mask = channel < parameters
    if GROUPS > 1:
        index = channel % GROUPS * (parameters // GROUPS) + channel // GROUPS
    return index, mask


@triton.jit
def _merge_moments(partials, rows, chunks, chunk_rows, channels, channel, BLOCK_P: tl.constexpr):
    """Mean and sum of squared deviations over all rows (Chan, Golub and LeVeque, 1979)."""
    channel_mask = channel < channels
    shift = tl.load(partials + channel, mask=channel_mask, other=0.0)
    total = tl.zeros_like(shift)
    squares = tl.zeros_like(shift)
    for first in range(0, chunks, BLOCK_P):
        chunk = first + tl.arange(0, BLOCK_P)
        mask = (chunk < chunks)[:, None] & channel_mask[None, :]
        offsets = chunk[:, None] * channels + channel[None, :]
        means = tl.load(partials + offsets, mask=mask, other=0.0)
        within = tl.load(partials + chunks * channels + offsets, mask=mask, other=0.0)
        counts = tl.minimum(chunk_rows, rows - chunk * chunk_rows).to(tl.float32)[:, None]
        difference = tl.where(mask, means - shift[None, :], 0.0)
        total += tl.sum(counts * difference, 0)
        squares += tl.sum(within + counts * difference * difference, 0)
    offset = total / rows
    m2 = tl.maximum(squares - total * offset, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return shift + offset, m2


@triton.jit(do_not_specialize=SIZES)
def moments_kernel(
    x, partials, rows, units, chunks, chunk_rows,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First of two kernels: write the moments of each chunk to ``partials``, (2, chunks, channels).

    These are means and sums of squared deviations. Values are shifted by the chunk's first row,
    because sums of squares of large values would cancel.
    """
    channels, channel, start, count = _find_chunk(rows, units, chunk_rows, UNIT, BLOCK_C)
    channel_mask = channel < channels
    x += start.to(tl.int64) * channels
    shift = tl.load(x + channel, mask=channel_mask, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        mask, offsets = _find_tile(first, count, channel, channels, channel_mask, BLOCK_M)
        tile = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        difference = tl.where(mask, tile - shift[None, :], 0.0)
        sums += difference
        squares += difference * difference
    _store_moments(sums, squares, shift, count, partials, chunks, channels, channel)


@triton.jit(do_not_specialize=[*SIZES, "moment_chunks", "moment_rows"])
def normalize_kernel(
    x, residual, y, partials, statistics, weight, bias, running_mean, running_var, batches,
    rows, units, parameters, chunk_rows, moment_chunks, moment_rows, momentum, eps, upper,
    TRAINING: tl.constexpr, UNIT: tl.constexpr, GROUPS: tl.constexpr,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Second of two kernels, and the only one of evaluation: write the output.

    In training it also writes the running statistics and ``statistics``, (2, channels), the batch's
    mean and 1 / std. ``partials`` are those of ``moment_chunks`` chunks of ``moment_rows`` rows,
    from any kernel. All programs of a channel block compute the same statistics; one writes them.
    """
    channels, channel, start, count = _find_chunk(rows, units, chunk_rows, UNIT, BLOCK_C)
    channel_mask = channel < channels
    index, parameter_mask = _parameters_of(channel, channels, parameters, GROUPS)
    if TRAINING:
        mean, m2 = _merge_moments(
            partials, rows, moment_chunks, moment_rows, channels, channel, BLOCK_P
        )
        variance = m2 / rows + eps
        if GROUPS > 0:
            variance = tl.where(parameter_mask, variance, float("inf"))
        invstd = 1.0 / tl.sqrt(variance)
        is_first = tl.program_id(1) == 0
        write = channel_mask & is_first
        tl.store(statistics + channel, mean, mask=write)
        tl.store(statistics + channels + channel, invstd, mask=write)
        write = parameter_mask & is_first
        old_mean = tl.load(running_mean + index, mask=write, other=0.0)
        old_var = tl.load(running_var + index, mask=write, other=0.0)
        tl.store(running_mean + index, (1 - momentum) * old_mean + momentum * mean, mask=write)
        unbiased = m2 / (rows - 1)
        tl.store(running_var + index, (1 - momentum) * old_var + momentum * unbiased, mask=write)
        if is_first & (tl.program_id(0) == 0):
            tl.store(batches, tl.load(batches) + 1)
    else:
        mean = tl.load(running_mean + channel, mask=channel_mask, other=0.0)
        variance = tl.load(running_var + channel, mask=channel_mask, other=1.0)
        invstd = 1.0 / tl.sqrt(variance + eps)
    scale = invstd * tl.load(weight + index, mask=parameter_mask, other=0.0)
    shift = tl.load(bias + index, mask=parameter_mask, other=0.0)
    chunk_offset = start.to(tl.int64) * channels
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        mask, offsets = _find_tile(first, count, channel, channels, channel_mask, BLOCK_M)
        z = tl.load(x + chunk_offset + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (z - mean[None, :]) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + chunk_offset + offsets, mask=mask, other=0.0).to(tl.float32)
        values = _activate(z, upper, ACT).to(y.dtype.element_ty)
        tl.store(y + chunk_offset + offsets, values, mask=mask)


@triton.jit
def _load_dz(
    dy, dy2, x, y, mean, scale, shift, offsets, mask, upper,
    ACT: tl.constexpr, MASK: tl.constexpr, HAS_DY2: tl.constexpr,
):  # fmt: skip
    """The gradient dz before the activation, and x - mean, of one tile; 0 outside ``mask``.

    With ``HAS_DY2`` the gradient of the output is dy + dy2. At its bounds the derivative of the
    activation is 0.
    """
    dz = tl.load(dy + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_DY2:
        dz += tl.load(dy2 + offsets, mask=mask, other=0.0).to(tl.float32)
    centered = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
    if MASK != MASK_NONE:
        if MASK == MASK_FROM_INPUT:
            # rounded as the output was, so that the same values are at the bounds
            z = (centered * scale[None, :] + shift[None, :]).to(x.dtype.element_ty).to(tl.float32)
        else:
            z = tl.load(y + offsets, mask=mask, other=0.0).to(tl.float32)
        inside = z > 0
        if ACT == CLAMP:
            inside = inside & (z < upper)
        dz = tl.where(inside, dz, 0.0)
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
    channels, channel, start, count = _find_chunk(rows, units, chunk_rows, UNIT, BLOCK_C)
    channel_mask = channel < channels
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
        mask, offsets = _find_tile(first, count, channel, channels, channel_mask, BLOCK_M)
        dz, centered = _load_dz(
            dy, dy2, x, y, mean, scale, shift, offsets, mask, upper, ACT, MASK, HAS_DY2
        )
        sums += dz
        products += dz * centered
        if WRITE_DZ:
            tl.store(dz_out + offsets, dz.to(dz_out.dtype.element_ty), mask=mask)
    chunk = tl.program_id(1)
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
    channels, channel, start, count = _find_chunk(rows, units, chunk_rows, UNIT, BLOCK_C)
    channel_mask = channel < channels
    mean = tl.load(statistics + channel, mask=channel_mask, other=0.0)
    invstd = tl.load(statistics + channels + channel, mask=channel_mask, other=0.0)
    total = tl.zeros_like(mean)
    product = tl.zeros_like(mean)
    for first in range(0, chunks, BLOCK_P):
        mask, offsets = _find_tile(first, chunks, channel, channels, channel_mask, BLOCK_P)
        total += tl.sum(tl.load(partials + offsets, mask=mask, other=0.0), 0)
        offsets += chunks * channels
        product += tl.sum(tl.load(partials + offsets, mask=mask, other=0.0), 0)
    index, parameter_mask = _parameters_of(channel, channels, parameters, GROUPS)
    write = parameter_mask & (tl.program_id(1) == 0)
    tl.store(dweight + index, product, mask=write)
    tl.store(dbias + index, total, mask=write)

    scale = invstd * tl.load(weight + index, mask=parameter_mask, other=0.0)
    shift = tl.load(bias + index, mask=parameter_mask, other=0.0)
    constant = total / rows
    slope = product * invstd / rows
    chunk_offset = start.to(tl.int64) * channels
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        mask, offsets = _find_tile(first, count, channel, channels, channel_mask, BLOCK_M)
        dz, centered = _load_dz(
            dy + chunk_offset, dy, x + chunk_offset, y + chunk_offset,
            mean, scale, shift, offsets, mask, upper, ACT, MASK, False,
        )  # fmt: skip
        gradient = scale[None, :] * (dz - constant[None, :] - centered * slope[None, :])
        tl.store(dx + chunk_offset + offsets, gradient.to(dx.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["size", "in_channels", "out_stride", "in_stride", "tap_stride", "padded"]
)
def fold_kernel(
    weight, folded, folded_bias, gamma, beta, running_mean, running_var,
    size, in_channels, out_stride, in_stride, tap_stride, padded, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weight and bias of a convolution with BatchNorm folded in.

    A program computes one output channel. ``folded`` is (channels, taps, padded) with taps = H * W
    and zeros from input channel ``in_channels`` on; ``size`` is taps * padded.
    """
    channel = tl.program_id(0)
    scale = tl.load(gamma + channel) / tl.sqrt(tl.load(running_var + channel) + eps)
    bias = tl.load(beta + channel) - tl.load(running_mean + channel) * scale
    tl.store(folded_bias + channel, bias.to(folded_bias.dtype.element_ty))
    for first in range(0, size, BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        mask = offsets < size
        in_channel = offsets % padded
        source = channel * out_stride + in_channel * in_stride + offsets // padded * tap_stride
        values = tl.load(weight + source, mask=mask & (in_channel < in_channels), other=0.0) * scale
        target = folded + channel * size + offsets
        tl.store(target, values.to(folded.dtype.element_ty), mask=mask)
