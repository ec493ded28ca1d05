"""Depthwise 3x3 convolutions with padding 1 and stride 1 or 2, of channels-last activations.

A column is the pixels (x, 0), (x, 1), ... of one image; there are N * width columns. A program
processes ``BLOCK_C`` channels of a chunk of columns, ``BLOCK_M`` columns at a time, and goes down
their rows. So with stride 1 an input row is loaded three times, shifted by -1, 0 and 1, in place of
nine times: its contributions to three output rows are added as soon as it is loaded.

Grid and sizes are as in ``batch_norm_kernels``, with columns in place of rows. The arithmetic is
float32. Weights are (parameters, 3, 3), float32; further channels are padding, whose outputs are
zero. With ``POOL`` no weights are read: they are 1/9, which is average pooling.
"""

import triton
import triton.language as tl

from fedaux_pl.accelerate.kernels.batch_norm_kernels import _activate, _find_chunk

SIZES = [
    "columns", "units", "parameters", "chunk_columns", "height", "width", "out_height", "out_width",
]  # fmt: skip
NINTH = tl.constexpr(1 / 9)
# With stride 1 the loads of the next rows are pipelined, because a program has few bytes of each
# row: on an H200 the layers of MobileNetV2 take 0.7 times as long. Triton does not pipeline the
# backward kernel in float32.
STAGES = tl.constexpr(6)


@triton.jit
def _load_raw(x, row, column, height, width, channels, channel, mask):
    """Values of a row, for BLOCK_M columns with ``x`` at their images; 0 outside of the image."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    offsets = ((row * width + column) * channels)[:, None] + channel[None, :]
    return tl.load(x + offsets, mask=mask & inside[:, None], other=0.0)


@triton.jit
def _load_row(x, row, column, height, width, channels, channel, mask):
    """The values of ``_load_raw`` in float32."""
    return _load_raw(x, row, column, height, width, channels, channel, mask).to(tl.float32)


@triton.jit
def _load_three(x, row, column, height, width, channels, channel, mask):
    """Values of a row at the columns to the left, at the columns and to the right of them."""
    left = _load_row(x, row, column - 1, height, width, channels, channel, mask)
    center = _load_row(x, row, column, height, width, channels, channel, mask)
    right = _load_row(x, row, column + 1, height, width, channels, channel, mask)
    return left, center, right


@triton.jit
def _load_weights(weight, channel, mask, POOL: tl.constexpr):
    """The nine weights of each channel, row by row, each as (1, BLOCK_C)."""
    weights = ()
    for tap in tl.static_range(9):
        if POOL:
            value = tl.where(mask, NINTH, 0.0)
        else:
            value = tl.load(weight + channel * 9 + tap, mask=mask, other=0.0)
        weights = weights + (value[None, :],)  # noqa: RUF005 - Triton's language
    return weights


@triton.jit(do_not_specialize=[*SIZES, "out_units"])
def depthwise_kernel(
    x, weight, y, gamma, beta, running_mean, running_var,
    columns, units, parameters, chunk_columns, height, width, out_height, out_width, out_units,
    eps, upper,
    UNIT: tl.constexpr, STRIDE: tl.constexpr, POOL: tl.constexpr,
    HAS_NORM: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The convolution; columns are those of the output.

    It writes act(conv(x)), or act(norm(conv(x))) with the running statistics if ``HAS_NORM``. A
    pixel of ``y`` has ``out_units * UNIT`` values, at least one a channel.
    """
    channels, channel, start, count = _find_chunk(columns, units, chunk_columns, UNIT, BLOCK_C)
    pitch = out_units * UNIT
    channel_mask = channel < channels
    weight_mask = channel < parameters
    w00, w01, w02, w10, w11, w12, w20, w21, w22 = _load_weights(weight, channel, weight_mask, POOL)
    if HAS_NORM:
        variance = tl.load(running_var + channel, mask=weight_mask, other=1.0)
        scale = tl.load(gamma + channel, mask=weight_mask, other=0.0) / tl.sqrt(variance + eps)
        shift = tl.load(beta + channel, mask=weight_mask, other=0.0)
        shift -= tl.load(running_mean + channel, mask=weight_mask, other=0.0) * scale
    for first in range(0, count, BLOCK_M):
        column_in_chunk = first + tl.arange(0, BLOCK_M)
        mask = (column_in_chunk < count)[:, None] & channel_mask[None, :]
        image = (start + column_in_chunk) // out_width
        out_column = (start + column_in_chunk) % out_width
        column = out_column * STRIDE
        source = x + (image.to(tl.int64) * height * width * channels)[:, None]
        target = y + (image.to(tl.int64) * out_height * out_width * pitch)[:, None]
        target += (out_column * pitch)[:, None] + channel[None, :]
        # a part of an output row is the sum over the input rows that were loaded so far
        a, b, c = _load_three(source, -1, column, height, width, channels, channel, mask)
        this_part = a * w00 + b * w01 + c * w02
        next_part = tl.zeros_like(this_part)
        if STRIDE == 1:
            a, b, c = _load_three(source, 0, column, height, width, channels, channel, mask)
            this_part += a * w10 + b * w11 + c * w12
            next_part = a * w00 + b * w01 + c * w02
        for out_row in tl.range(out_height, num_stages=STAGES if STRIDE == 1 else 1):
            row = out_row * STRIDE
            if STRIDE == 2:
                a, b, c = _load_three(source, row, column, height, width, channels, channel, mask)
                this_part += a * w10 + b * w11 + c * w12
            a, b, c = _load_three(source, row + 1, column, height, width, channels, channel, mask)
            z = this_part + (a * w20 + b * w21 + c * w22)
            this_part = a * w00 + b * w01 + c * w02
            if STRIDE == 1:
                new_part = this_part
                this_part = next_part + (a * w10 + b * w11 + c * w12)
                next_part = new_part
            if HAS_NORM:
                z = z * scale[None, :] + shift[None, :]
            values = _activate(z, upper, ACT).to(y.dtype.element_ty)
            tl.store(target + out_row * out_width * pitch, values, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def depthwise_backward_kernel(
    dy, x, weight, dx, partials,
    columns, units, parameters, chunk_columns, height, width, out_height, out_width,
    UNIT: tl.constexpr, STRIDE: tl.constexpr, POOL: tl.constexpr, NEEDS_DX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and each chunk's part of the weight's gradient, in one pass.

    ``partials`` is (chunks, parameters * 9); ``sum_partials_kernel`` adds up its rows. ``POOL`` is
    for stride 2 only. Columns are those of the output. With stride 2, a program computes the two by
    two input pixels whose first one is the center of an output pixel.
    """
    channels, channel, start, count = _find_chunk(columns, units, chunk_columns, UNIT, BLOCK_C)
    channel_mask = channel < channels
    weight_mask = channel < parameters
    w00, w01, w02, w10, w11, w12, w20, w21, w22 = _load_weights(weight, channel, weight_mask, POOL)
    zeros = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    s00, s01, s02 = zeros, zeros, zeros
    s10, s11, s12 = zeros, zeros, zeros
    s20, s21, s22 = zeros, zeros, zeros
    for first in range(0, count, BLOCK_M):
        column_in_chunk = first + tl.arange(0, BLOCK_M)
        mask = (column_in_chunk < count)[:, None] & channel_mask[None, :]
        image = ((start + column_in_chunk) // out_width).to(tl.int64)
        out_column = (start + column_in_chunk) % out_width
        column = out_column * STRIDE
        grad = dy + (image * out_height * out_width * channels)[:, None]
        source = x + (image * height * width * channels)[:, None]
        target = dx + (image * height * width * channels)[:, None]
        target += (column * channels)[:, None] + channel[None, :]
        if STRIDE == 1:
            # The output row r is read with its left and right neighbors. Its taps are the input
            # rows r - 1, r and r + 1: the upper, middle and lower gradients and values.
            x_upper = zeros
            # It stays in its dtype: loops that pass a value on for two iterations unchanged are not
            # pipelined.
            x_middle = _load_raw(source, 0, column, height, width, channels, channel, mask)
            dx_upper, dx_middle = zeros, zeros
            for row in tl.range(height + 1, num_stages=STAGES):
                x_next = _load_raw(source, row + 1, column, height, width, channels, channel, mask)
                a = _load_row(grad, row, column + 1, height, width, channels, channel, mask)
                b = _load_row(grad, row, column, height, width, channels, channel, mask)
                c = _load_row(grad, row, column - 1, height, width, channels, channel, mask)
                x_center = x_middle.to(tl.float32)
                x_lower = x_next.to(tl.float32)
                s00 += x_upper * a
                s01 += x_upper * b
                s02 += x_upper * c
                s10 += x_center * a
                s11 += x_center * b
                s12 += x_center * c
                s20 += x_lower * a
                s21 += x_lower * b
                s22 += x_lower * c
                if NEEDS_DX:
                    dx_upper += a * w00 + b * w01 + c * w02
                    pointers = target + (row - 1) * width * channels
                    tl.store(pointers, dx_upper.to(dx.dtype.element_ty), mask=mask & (row > 0))
                    dx_upper = dx_middle + (a * w10 + b * w11 + c * w12)
                    dx_middle = a * w20 + b * w21 + c * w22
                x_upper = x_center
                x_middle = x_next
        else:
            is_right_inside = (column + 1 < width)[:, None]
            after = out_column + 1
            b = _load_row(grad, 0, out_column, out_height, out_width, channels, channel, mask)
            a = _load_row(grad, 0, after, out_height, out_width, channels, channel, mask)
            for out_row in range(out_height):
                row = 2 * out_row
                low = out_row + 1
                d = _load_row(grad, low, out_column, out_height, out_width, channels, channel, mask)
                c = _load_row(grad, low, after, out_height, out_width, channels, channel, mask)
                if not POOL:
                    right = column + 1
                    value = _load_row(source, row, column, height, width, channels, channel, mask)
                    s11 += value * b
                    value = _load_row(source, row, right, height, width, channels, channel, mask)
                    s12 += value * b
                    s10 += value * a
                    lower = row + 1
                    value = _load_row(source, lower, column, height, width, channels, channel, mask)
                    s21 += value * b
                    s01 += value * d
                    value = _load_row(source, lower, right, height, width, channels, channel, mask)
                    s22 += value * b
                    s20 += value * a
                    s02 += value * d
                    s00 += value * c
                if NEEDS_DX:
                    pointers = target + row * width * channels
                    dtype: tl.constexpr = dx.dtype.element_ty
                    right_mask = mask & is_right_inside
                    tl.store(pointers, (b * w11).to(dtype), mask=mask)
                    upper_right = b * w12 + a * w10
                    tl.store(pointers + channels, upper_right.to(dtype), mask=right_mask)
                    pointers += width * channels
                    lower_mask = mask & (row + 1 < height)
                    lower_left = b * w21 + d * w01
                    tl.store(pointers, lower_left.to(dtype), mask=lower_mask)
                    corner = b * w22 + a * w20 + (d * w02 + c * w00)
                    tl.store(pointers + channels, corner.to(dtype), mask=lower_mask & right_mask)
                b = d
                a = c
    if not POOL:
        partials += tl.program_id(1).to(tl.int64) * parameters * 9
        sums = (s00, s01, s02, s10, s11, s12, s20, s21, s22)
        for tap in tl.static_range(9):
            tl.store(partials + channel * 9 + tap, tl.sum(sums[tap], 0), mask=weight_mask)
