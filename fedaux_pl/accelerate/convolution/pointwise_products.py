"""1x1 convolutions in training as matrix products; those with groups have a block-diagonal matrix.

Before its first step cuDNN tries its kernels for every shape and direction: on an H200 that takes
9 s for MobileNetV2's 1x1 convolutions of 32 images, and 0.1 s as products. Later steps take 637 us
by cuDNN, forward and backward, and 434 us as products.

Groups are narrower than a tile of the tensor cores, so the zeros cost little, and much less than
cuDNN's two conversions of the activations' layout. The matrix is written by one kernel, where
``torch.block_diag`` and the cast take four, and its gradient is read by one. The order of its rows
can be a channel shuffle, and zero rows and columns pad the channels for the tensor cores. Within
``write_matrices`` one kernel writes the matrices of many layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import current, launch
from fedaux_pl.accelerate.convolution.batch_norm import Moments, channels_last
from fedaux_pl.accelerate.convolution.image_stem import ALIGNMENT
from fedaux_pl.accelerate.convolution.paths import is_pointwise
from fedaux_pl.accelerate.convolution.pointwise_moments import (
    gives_moments,
    multiply_with_moments,
)
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
    uses_side_stream,
)
from fedaux_pl.accelerate.eligibility import HALF, fits_input

BLOCK = 1024


@dataclass(frozen=True)
class MatrixLayout:
    """How a matrix holds the weight of a convolution.

    Args:
        rows: Output channels, with padding.
        columns: Input channels, with padding.
        groups: Groups of the convolution.
        shuffled_groups: Groups of the channel shuffle of the rows; 1 for none.
    """

    rows: int
    columns: int
    groups: int
    shuffled_groups: int = 1

    def is_weight(self, weight: Tensor) -> bool:
        """Whether the matrix is the weight itself: no groups, no padding, no shuffle."""
        return self.shuffled_groups == 1 and self.rows * self.columns == weight.numel()

    def kernel_sizes(self, weight: Tensor) -> tuple[int, ...]:
        """The arguments of the kernels from ``columns`` to ``shuffled_groups``."""
        channels, group_in = weight.shape[:2]
        return self.columns, channels, group_in, channels // self.groups, self.shuffled_groups


Product = tuple[nn.Conv2d, MatrixLayout]


def write_matrices(products: Sequence[Product], dtype: torch.dtype) -> dict[Product, Tensor]:
    """Write the matrices that :func:`convolve_pointwise` reads, by one kernel into one buffer."""
    if not products:
        return {}
    weights = tuple(conv.weight.detach() for conv, _ in products)
    matrices, start = [], 0
    for weight, (_, layout) in zip(weights, products, strict=True):
        stop = start - (-layout.rows * layout.columns // BLOCK)
        matrices.append((start, stop, *layout.kernel_sizes(weight)))
        start = stop
    buffer = weights[0].new_empty(start * BLOCK, dtype=dtype)
    launch(
        "block_diagonals_kernel", (start,), weights, buffer, MATRICES=tuple(matrices), BLOCK=BLOCK
    )
    return {
        (conv, layout): buffer[first * BLOCK :][: layout.rows * layout.columns].view(
            layout.rows, layout.columns
        )
        for (first, *_), (conv, layout) in zip(matrices, products, strict=True)
    }


def fits_product(conv: nn.Module, x: Tensor, dtype: torch.dtype) -> TypeGuard[nn.Conv2d]:
    """Whether :func:`convolve_pointwise` is the fastest for a convolution in ``dtype``."""
    return (
        dtype in HALF
        and is_pointwise(conv)
        and conv.groups < conv.in_channels
        and (conv.groups > 1 or conv.in_channels % ALIGNMENT == 0)
        and fits_input(conv, x)
    )


def convolve_pointwise(
    conv: nn.Conv2d, x: Tensor, layout: MatrixLayout | None = None, cast: Tensor | None = None
) -> tuple[Tensor, Moments | None]:
    """Compute conv(x) in the dtype of ``x``, with gradients.

    The weight's gradient is computed on the side stream if there is one.

    Args:
        conv: A 1x1 convolution without bias, with any number of groups.
        x: Activations (N, C, H, W), with the channels of the layout's columns.
        layout: The matrix: the channels of the output are its rows, and those of padding are zero.
            By default the channels are those of the convolution.
        cast: The weight in the dtype of ``x``, if it was cast before.

    Returns:
        The output, and its moments for ``batch_norm_act``; None if it computes them faster.
    """
    n, in_channels, height, width = x.shape
    if layout is None:
        layout = MatrixLayout(conv.out_channels, conv.in_channels, conv.groups)
    rows = channels_last(x).permute(0, 2, 3, 1).reshape(-1, in_channels)
    side_stream = current().side_stream if uses_side_stream(conv) else None
    matrix = current().weights.get((conv, layout))
    if matrix is None or matrix.dtype != x.dtype:
        matrix = _matrix_of(conv.weight if cast is None else cast, layout, x.dtype)
    with_moments = gives_moments(len(rows), layout.columns, layout.rows, x.dtype)
    out, moments = _Product.apply(  # type: ignore[no-untyped-call]
        rows, conv.weight, matrix, layout, side_stream, with_moments
    )
    return out.view(n, height, width, layout.rows).permute(0, 3, 1, 2), moments


def _matrix_of(weight: Tensor, layout: MatrixLayout, dtype: torch.dtype) -> Tensor:
    """The matrix of a weight, without gradients."""
    if layout.is_weight(weight):
        return weight.detach().to(dtype).reshape(layout.rows, layout.columns)
    matrix = weight.new_empty(layout.rows, layout.columns, dtype=dtype)
    grid, sizes = (-(-matrix.numel() // BLOCK),), layout.kernel_sizes(weight)
    launch("block_diagonal_kernel", grid, weight, matrix, matrix.numel(), *sizes, BLOCK=BLOCK)
    return matrix


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
        ctx.weight, ctx.layout, ctx.side_stream = weight, layout, side_stream
        return multiply_with_moments(rows, matrix) if with_moments else (rows @ matrix.t(), None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: object) -> tuple[Tensor | None, ...]:
        rows, matrix = ctx.saved_tensors
        weight, layout, side_stream = ctx.weight, ctx.layout, ctx.side_stream
        dy = dy.contiguous()
        # with the layout and dtype of the parameter, as fused optimizers need it
        gradient = torch.empty_like(weight)
        is_weight = layout.is_weight(weight)
        dmatrix = (
            gradient.view(matrix.shape)
            if is_weight
            else torch.empty(matrix.shape, device=matrix.device)
        )

        def compute_weight_gradient() -> None:
            compute_linear_weight_gradient(dy, rows, dmatrix)
            if not is_weight:
                size, sizes = gradient.numel(), layout.kernel_sizes(weight)
                grid = (-(-size // BLOCK),)
                launch("diagonal_blocks_kernel", grid, dmatrix, gradient, size, *sizes, BLOCK=BLOCK)

        needs_drows, needs_gradient, *_ = ctx.needs_input_grad
        if side_stream is None:
            drows = dy @ matrix if needs_drows else None
            if needs_gradient:
                compute_weight_gradient()
            return drows, gradient if needs_gradient else None, None, None, None, None
        side_stream.stream.wait_stream(torch.cuda.current_stream(rows.device))
        drows = dy @ matrix if needs_drows else None
        with side_stream.computing(weight, gradient, dy, rows, dmatrix):
            compute_weight_gradient()
        return drows, None, None, None, None, None
