"""BatchNorm with residual and activation, forward.

PyTorch's BatchNorm of channels-last half precision reaches a tenth of a GPU's bandwidth, and the
residual and the activation are further passes over the same values. These kernels see channels-last
activations as a matrix (rows, channels) with N * H * W rows. A program processes one block of
``BLOCK_C`` channels and one chunk of ``chunk_rows`` rows, in tiles of (BLOCK_M, BLOCK_C). The grid
is (channel blocks, chunks).

``channels`` is passed as ``units * UNIT`` with a compile-time power of two ``UNIT``: the compiler
needs it for wide memory accesses. The run-time sizes are not specialized on, so a network compiles
few variants.

The layer has one parameter for each channel, in their order, if ``GROUPS`` is 0. Otherwise the
activations are those of a channel shuffle of ``parameters`` channels in ``GROUPS`` groups (1: in
their order), and further channels are padding: their outputs and gradients are zero.
"""

import triton
import triton.language as tl

# ACT, the activation
LINEAR = tl.constexpr(0)
RELU = tl.constexpr(1)
CLAMP = tl.constexpr(2)  # ReLU with an upper bound

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
def _clip_m2(m2):
    """Rounding can make a sum of squared deviations negative. NaN passes, as in PyTorch."""
    return tl.maximum(m2, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _finish_moments(sums, squares, shift, count):
    """Mean and sum of squared deviations of ``count`` rows, from sums over values - shift."""
    total = tl.sum(sums, 0)
    offset = total / count
    return shift + offset, _clip_m2(tl.sum(squares, 0) - total * offset)


@triton.jit
def _store_moments(mean, m2, partials, chunk, chunks, channels, channel):
    """Write the moments of a chunk to ``partials``, (2, chunks, channels)."""
    mask = channel < channels
    tl.store(partials + chunk * channels + channel, mean, mask=mask)
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
    """Mean and sum of squared deviations over all rows, from those of the chunks.

    After Chan, Golub and LeVeque, 1979; ``partials`` is as ``moments_kernel`` writes it, with
    ``chunk_rows`` rows in each chunk but the last.
    """
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
    return shift + offset, _clip_m2(squares - total * offset)


@triton.jit
def _store_statistics(
    mean, m2, statistics, running_mean, running_var, batches,
    rows, channels, parameters, channel, momentum, eps, is_first,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """Save mean and 1 / std for the backward pass, update the buffers, and return 1 / std.

    All programs of a channel block compute the same values; only the first one writes them. For
    padding, 1 / std is 0 and so are its outputs and gradients.
    """
    index, mask = _parameters_of(channel, channels, parameters, GROUPS)
    variance = m2 / rows + eps
    if GROUPS > 0:
        variance = tl.where(mask, variance, float("inf"))
    invstd = 1.0 / tl.sqrt(variance)
    write = (channel < channels) & is_first
    tl.store(statistics + channel, mean, mask=write)
    tl.store(statistics + channels + channel, invstd, mask=write)
    write = mask & is_first
    old_mean = tl.load(running_mean + index, mask=write, other=0.0)
    old_var = tl.load(running_var + index, mask=write, other=0.0)
    tl.store(running_mean + index, (1 - momentum) * old_mean + momentum * mean, mask=write)
    unbiased = m2 / (rows - 1)
    tl.store(running_var + index, (1 - momentum) * old_var + momentum * unbiased, mask=write)
    if is_first & (tl.program_id(0) == 0):
        tl.store(batches, tl.load(batches) + 1)
    return invstd


@triton.jit
def _normalize(
    x, residual, y, mean, invstd, weight, bias,
    count, channels, parameters, channel, upper,
    GROUPS: tl.constexpr,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write y = act((x - mean) / std * weight + bias + residual) of ``count`` rows."""
    channel_mask = channel < channels
    index, parameter_mask = _parameters_of(channel, channels, parameters, GROUPS)
    scale = invstd * tl.load(weight + index, mask=parameter_mask, other=0.0)
    shift = tl.load(bias + index, mask=parameter_mask, other=0.0)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        mask = (row < count)[:, None] & channel_mask[None, :]
        offsets = row[:, None] * channels + channel[None, :]
        z = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        z = (z - mean[None, :]) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + offsets, _activate(z, upper, ACT).to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def moments_kernel(
    x, partials, rows, units, chunks, chunk_rows,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First of two kernels: write the moments of each chunk.

    ``partials``, (2, chunks, channels), are the means and the sums of squared deviations. Values
    are shifted by the chunk's first row, because sums of squares of large values would cancel. Each
    element of a tile has its own sum over the tiles; these sums are added at the end.
    """
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channel < channels
    chunk = tl.program_id(1)
    start = chunk * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    x += start.to(tl.int64) * channels
    shift = tl.load(x + channel, mask=channel_mask, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in tl.range(0, count, BLOCK_M, num_stages=STAGES):
        row = first + tl.arange(0, BLOCK_M)
        mask = (row < count)[:, None] & channel_mask[None, :]
        offsets = row[:, None] * channels + channel[None, :]
        tile = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        difference = tl.where(mask, tile - shift[None, :], 0.0)
        sums += difference
        squares += difference * difference
    mean, m2 = _finish_moments(sums, squares, shift, count)
    _store_moments(mean, m2, partials, chunk, chunks, channels, channel)


@triton.jit(do_not_specialize=[*SIZES, "moment_chunks", "moment_rows"])
def normalize_kernel(
    x, residual, y, partials, statistics,
    weight, bias, running_mean, running_var, batches,
    rows, units, parameters, chunk_rows, moment_chunks, moment_rows, momentum, eps, upper,
    UNIT: tl.constexpr, GROUPS: tl.constexpr,
    ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Second of two kernels: write the output, the running statistics and ``statistics``.

    ``partials`` are those of ``moment_chunks`` chunks of ``moment_rows`` rows; the kernel that
    wrote them may have had other chunks than this one. ``statistics``, (2, channels), are the
    batch's mean and 1 / std, for the backward pass.
    """
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    count = tl.minimum(chunk_rows, rows - start)
    mean, m2 = _merge_moments(
        partials, rows, moment_chunks, moment_rows, channels, channel, BLOCK_P
    )
    invstd = _store_statistics(
        mean, m2, statistics, running_mean, running_var, batches,
        rows, channels, parameters, channel, momentum, eps, tl.program_id(1) == 0, GROUPS,
    )  # fmt: skip
    chunk_offset = start.to(tl.int64) * channels
    _normalize(
        x + chunk_offset, residual + chunk_offset, y + chunk_offset, mean, invstd, weight, bias,
        count, channels, parameters, channel, upper, GROUPS, ACT, HAS_RESIDUAL, BLOCK_M, STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def normalize_eval_kernel(
    x, residual, y, weight, bias, running_mean, running_var,
    rows, units, chunk_rows, eps, upper,
    UNIT: tl.constexpr, ACT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the output in evaluation mode, with the running statistics."""
    channels = units * UNIT
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    start = tl.program_id(1) * chunk_rows
    chunk_offset = start.to(tl.int64) * channels
    mean = tl.load(running_mean + channel, mask=channel < channels, other=0.0)
    variance = tl.load(running_var + channel, mask=channel < channels, other=1.0)
    _normalize(
        x + chunk_offset, residual + chunk_offset, y + chunk_offset,
        mean, 1.0 / tl.sqrt(variance + eps), weight, bias, tl.minimum(chunk_rows, rows - start),
        channels, channels, channel, upper, 0, ACT, HAS_RESIDUAL, BLOCK_M, STAGES,
    )  # fmt: skip


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
