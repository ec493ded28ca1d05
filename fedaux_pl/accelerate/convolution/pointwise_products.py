"""1x1 convolutions in training as matrix products; those with groups have a block-diagonal matrix.

On an H200 cuDNN takes 9 s for its trials of MobileNetV2's 1x1 convolutions of 32 images, and 637 us
for each later step; products take 0.1 s and 434 us.

Groups are narrower than a tile of the tensor cores, so the zeros cost little, and much less than
cuDNN's two conversions of the activations' layout. The order of the matrix's rows can be a channel
shuffle, and zero rows and columns pad the channels for the tensor cores. With few input channels
the product's kernel also computes BatchNorm's moments of the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import MIN_BLOCK, ceil_div, current, launch, next_power_of_two
from fedaux_pl.accelerate.convolution.batch_norm import PROGRAMS, Moments, channels_last
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
    fork,
    side_stream_for,
    write_gradient,
)
from fedaux_pl.accelerate.eligibility import ALIGNMENT, HALF, fits_input, is_pointwise

# For most layers with more input channels, cuBLAS and a second kernel for the moments are faster.
MAX_IN_CHANNELS = 128
# Tiles that were fastest on an H200. With few input channels narrower blocks are faster, although
# they read the input more often.
BLOCK_PIXELS = 64
BLOCK_CHANNELS = 64
FEW_CHANNELS = 16
FEW_BLOCK_CHANNELS = 32
STAGES = 4
WARPS = 4


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix holds the weight of a convolution."""

    rows: int  # output channels, with padding
    columns: int  # input channels, with padding
    groups: int = 1  # of the convolution
    shuffled_groups: int = 1  # of the shuffle of the rows: 1, ``groups``, or any if groups is 1

    def is_weight(self, weight: Tensor) -> bool:
        """Whether the matrix is the weight itself: no groups, no padding, no shuffle."""
        return self.shuffled_groups == 1 and self.rows * self.columns == weight.numel()

    def blocks(self, matrix: Tensor, weight: Tensor) -> Tensor:
        """View the blocks of a matrix as a weight, with its channels as two dimensions."""
        channels, group_in = weight.shape[:2]
        width = self.groups * group_in
        rows = matrix[:channels, :width]
        if self.shuffled_groups > 1:  # row r of group g is row r * groups + g of the matrix
            rows = rows.view(-1, self.shuffled_groups, width).transpose(0, 1)
        else:
            rows = rows.view(self.groups, -1, width)
        if self.groups == 1:
            return rows
        rows = rows.view(self.groups, -1, self.groups, group_in)
        return rows.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


Product = tuple[nn.Conv2d, MatrixLayout]


def write_matrices(products: Sequence[Product], dtype: torch.dtype) -> dict[Product, Tensor]:
    """Write the matrices that ``convolve_pointwise`` reads into one buffer."""
    if not products:
        return {}
    sizes = [layout.rows * layout.columns for _, layout in products]
    buffer = products[0][0].weight.new_zeros(sum(sizes), dtype=dtype)
    matrices = {}
    for (conv, layout), zeros in zip(products, torch.split(buffer, sizes), strict=True):
        matrices[conv, layout] = _write_blocks(conv.weight, layout, zeros)
    return matrices


def _write_blocks(weight: Tensor, layout: MatrixLayout, zeros: Tensor) -> Tensor:
    """Write a weight to its places in a matrix of zeros."""
    matrix = zeros.view(layout.rows, layout.columns)
    blocks = layout.blocks(matrix, weight)
    blocks.copy_(weight.detach().view(blocks.shape))
    return matrix


def matrix_of(weight: Tensor, layout: MatrixLayout, dtype: torch.dtype) -> Tensor:
    """The matrix of a weight, without gradients."""
    if layout.is_weight(weight):
        return weight.detach().to(dtype).reshape(layout.rows, layout.columns)
    zeros = weight.new_zeros(layout.rows, layout.columns, dtype=dtype)
    return _write_blocks(weight, layout, zeros)


def fits_product(conv: nn.Module, x: Tensor, dtype: torch.dtype) -> TypeGuard[nn.Conv2d]:
    """Whether ``convolve_pointwise`` is the fastest for a convolution in ``dtype``."""
    return (
        dtype in HALF
        and is_pointwise(conv)
        and conv.groups < conv.in_channels
        and (conv.groups > 1 or conv.in_channels % ALIGNMENT == 0)
        and fits_input(conv, x)
    )


def convolve_pointwise(
    conv: nn.Conv2d,
    x: Tensor,
    layout: MatrixLayout | None = None,
) -> tuple[Tensor, Moments | None]:
    """Compute conv(x) in the dtype of ``x``, with gradients.

    The channels of ``x`` are the columns of the layout, those of the output its rows; by default
    those of the convolution. Also return the moments, if ``batch_norm_act`` is not faster.
    """
    n, in_channels, height, width = x.shape
    if layout is None:
        layout = MatrixLayout(conv.out_channels, conv.in_channels, conv.groups)
    rows = channels_last(x).movedim(1, 3).reshape(-1, in_channels)
    matrix = current().matrices.get((conv, layout))
    if matrix is None or matrix.dtype != x.dtype:
        matrix = matrix_of(conv.weight, layout, x.dtype)
    out, moments = _Product.apply(
        rows, conv.weight, matrix, layout, side_stream_for(conv), gives_moments(layout, x.dtype)
    )
    return out.view(n, height, width, layout.rows).movedim(3, 1), moments


class _Product(torch.autograd.Function):
    """Rows (pixels, in_channels) times the transposed matrix of a weight, and their moments."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        matrix: Tensor,
        layout: MatrixLayout,
        side_stream: SideStream | None,
        with_moments: bool,
    ) -> tuple[Tensor, Moments | None]:
        ctx.save_for_backward(rows, matrix)
        ctx.weight = weight
        ctx.layout = layout
        ctx.side_stream = side_stream
        if with_moments:
            return multiply_with_moments(rows, matrix)
        return rows @ matrix.t(), None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: object) -> tuple[Tensor | None, ...]:
        rows, matrix = ctx.saved_tensors
        weight = ctx.weight
        layout = ctx.layout
        dy = dy.contiguous()
        gradient = fork(ctx.side_stream, weight)
        is_weight = layout.is_weight(weight)
        dmatrix = gradient if is_weight else torch.empty(matrix.shape, device=matrix.device)
        needs_drows, needs_gradient, *_ = ctx.needs_input_grad
        drows = dy @ matrix if needs_drows else None
        if not needs_gradient:
            return drows, None, None, None, None, None

        def write() -> None:
            compute_linear_weight_gradient(dy, rows, dmatrix.view(matrix.shape))
            if not is_weight:
                blocks = layout.blocks(dmatrix, weight)
                gradient.view(blocks.shape).copy_(blocks)

        dweight = write_gradient(ctx.side_stream, weight, gradient, write, dy, rows, dmatrix)
        return drows, dweight, None, None, None, None


def gives_moments(layout: MatrixLayout, dtype: torch.dtype) -> bool:
    """Whether a product is computed by ``multiply_with_moments``, in training."""
    return (
        torch.is_grad_enabled()
        and dtype in HALF
        and layout.columns <= MAX_IN_CHANNELS
        and layout.columns % ALIGNMENT == 0
        and layout.rows % ALIGNMENT == 0
    )


def multiply_with_moments(rows: Tensor, weight: Tensor) -> tuple[Tensor, Moments]:
    """Compute rows @ weight.T and its moments, with at most ``MAX_IN_CHANNELS`` columns."""
    pixels, in_channels = rows.shape
    channels = len(weight)
    max_block = FEW_BLOCK_CHANNELS if in_channels <= FEW_CHANNELS else BLOCK_CHANNELS
    block_channels = min(max_block, next_power_of_two(channels, MIN_BLOCK))
    channel_blocks = ceil_div(channels, block_channels)
    # as many programs for each BLOCK_CHANNELS channels as BatchNorm's kernels have
    width = max(BLOCK_CHANNELS, channel_blocks * block_channels)
    tiles = ceil_div(pixels * width, PROGRAMS * BLOCK_CHANNELS * BLOCK_PIXELS)
    chunk = tiles * BLOCK_PIXELS
    chunks = ceil_div(pixels, chunk)
    out = rows.new_empty(pixels, channels)
    partials = torch.empty(2, chunks, channels, device=rows.device)
    launch("pointwise_moments_kernel", (channel_blocks, chunks),
        rows, weight, out, partials, pixels, in_channels // ALIGNMENT, channels // ALIGNMENT, chunk,
        UNIT=ALIGNMENT, BLOCK_M=BLOCK_PIXELS, BLOCK_N=block_channels,
        BLOCK_K=next_power_of_two(in_channels, MIN_BLOCK),
        WARPS=WARPS, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out, Moments(partials, chunk)
