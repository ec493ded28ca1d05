"""The weight of a grouped 1x1 convolution as a block-diagonal matrix, and back."""

import triton
import triton.language as tl

SIZES = ["size", "in_channels", "group_in", "group_out"]


@triton.jit(do_not_specialize=SIZES)
def block_diagonal_kernel(
    weight, dense, size, in_channels, group_in, group_out, BLOCK: tl.constexpr
):
    """The matrix (channels, in_channels) of a weight (channels, group_in), cast to its dtype.

    ``size`` is the number of values of the matrix; ``group_in`` and ``group_out`` are the input and
    output channels of a group.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = offsets // in_channels
    in_group = offsets % in_channels - channel // group_out * group_in
    mask = (offsets < size) & (in_group >= 0) & (in_group < group_in)
    values = tl.load(weight + channel * group_in + in_group, mask=mask, other=0.0)
    tl.store(dense + offsets, values.to(dense.dtype.element_ty), mask=offsets < size)


@triton.jit(do_not_specialize=SIZES)
def diagonal_blocks_kernel(
    dense, weight, size, in_channels, group_in, group_out, BLOCK: tl.constexpr
):
    """The blocks of a matrix as a weight; ``size`` is the number of values of the weight."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = offsets // group_in
    column = channel // group_out * group_in + offsets % group_in
    mask = offsets < size
    values = tl.load(dense + channel * in_channels + column, mask=mask, other=0.0)
    tl.store(weight + offsets, values.to(weight.dtype.element_ty), mask=mask)
