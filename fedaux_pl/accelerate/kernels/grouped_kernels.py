"""The weight of a grouped 1x1 convolution as a block-diagonal matrix, and back.

The matrix (rows, columns) can have more rows and columns than the convolution has output and input
channels: they are padding. Its rows are in the order of a channel shuffle with ``shuffled_groups``
groups; 1 is the order of the weight. ``group_in`` and ``group_out`` are the input and output
channels of a group.
"""

import triton
import triton.language as tl

SIZES = ["size", "columns", "channels", "group_in", "group_out", "shuffled_groups"]


@triton.jit
def _load_matrix(weight, offsets, columns, channels, group_in, group_out, shuffled_groups):
    """Values of the matrix of a weight (channels, group_in); those of padding are zero."""
    row = offsets // columns
    channel = row % shuffled_groups * (channels // shuffled_groups) + row // shuffled_groups
    in_group = offsets % columns - channel // group_out * group_in
    mask = (row < channels) & (in_group >= 0) & (in_group < group_in)
    return tl.load(weight + channel * group_in + in_group, mask=mask, other=0.0)


@triton.jit(do_not_specialize=SIZES)
def block_diagonal_kernel(
    weight, dense, size, columns, channels, group_in, group_out, shuffled_groups,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the matrix of a weight, of ``size`` values, cast to its dtype."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = _load_matrix(weight, offsets, columns, channels, group_in, group_out, shuffled_groups)
    tl.store(dense + offsets, values.to(dense.dtype.element_ty), mask=offsets < size)


@triton.jit
def block_diagonals_kernel(weights, dense, MATRICES: tl.constexpr, BLOCK: tl.constexpr):
    """Write the matrices of many weights, one behind the other, each in whole blocks.

    ``MATRICES`` are, for each weight, its first block and the block after its last one, followed by
    the arguments of :func:`_load_matrix`. The rest of the last block is padding, too.
    """
    block = tl.program_id(0)
    for i in tl.static_range(len(MATRICES)):
        if (block >= MATRICES[i][0]) & (block < MATRICES[i][1]):
            offsets = (block - MATRICES[i][0]) * BLOCK + tl.arange(0, BLOCK)
            values = _load_matrix(
                weights[i], offsets, MATRICES[i][2], MATRICES[i][3], MATRICES[i][4],
                MATRICES[i][5], MATRICES[i][6],
            )  # fmt: skip
            target = dense + block * BLOCK + tl.arange(0, BLOCK)
            tl.store(target, values.to(dense.dtype.element_ty))


@triton.jit(do_not_specialize=SIZES)
def diagonal_blocks_kernel(
    dense, weight, size, columns, channels, group_in, group_out, shuffled_groups,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The blocks of a matrix as a weight; ``size`` is the number of values of the weight."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = offsets // group_in
    shuffled_size = channels // shuffled_groups
    row = channel % shuffled_size * shuffled_groups + channel // shuffled_size
    column = channel // group_out * group_in + offsets % group_in
    mask = offsets < size
    values = tl.load(dense + row * columns + column, mask=mask, other=0.0)
    tl.store(weight + offsets, values.to(weight.dtype.element_ty), mask=mask)
