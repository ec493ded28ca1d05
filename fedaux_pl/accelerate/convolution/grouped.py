"""Grouped 1x1 convolutions as matrix products with a block-diagonal weight.

Groups are narrower than a tile of the tensor cores, so the zeros cost little, and much less than
cuDNN's two conversions of the activations' layout. The matrix is written by one kernel, where
``torch.block_diag`` and the cast take four, and its gradient is read by one. The order of its rows
can be a channel shuffle, and zero rows and columns pad the channels for the tensor cores. Within
:func:`matrices_written` one kernel writes the matrices of many layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.contexts import setting
from fedaux_pl.accelerate.convolution.batch_norm import channels_last, on_device_of
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
    current_side_stream,
    uses_side_stream,
)

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

    def kernel_sizes(self, weight: Tensor) -> tuple[int, ...]:
        """The arguments of the kernels from ``columns`` to ``shuffled_groups``."""
        channels, group_in = weight.shape[:2]
        return self.columns, channels, group_in, channels // self.groups, self.shuffled_groups


Product = tuple[nn.Conv2d, MatrixLayout]
_matrices: ContextVar[Mapping[Product, Tensor]] = ContextVar(
    "matrices", default=MappingProxyType({})
)


@contextmanager
def matrices_written(products: Sequence[Product], dtype: torch.dtype) -> Iterator[None]:
    """Within it :func:`convolve_grouped` reads matrices that one kernel has written.

    Args:
        products: Convolutions and the layouts of their matrices; with none this has no effect.
        dtype: The dtype of the matrices.
    """
    if not products:
        yield
        return
    with setting(_matrices, dict(zip(products, _write_all(products, dtype), strict=True))):
        yield


def has_matrix(conv: nn.Module) -> bool:
    """Whether the matrix of a convolution was written by :func:`matrices_written`."""
    return any(conv is written for written, _ in _matrices.get())


def _write_all(products: Sequence[Product], dtype: torch.dtype) -> list[Tensor]:
    """Write the matrices into one buffer and return views of it."""
    from fedaux_pl.accelerate import kernels

    weights = tuple(conv.weight.detach() for conv, _ in products)
    matrices, start = [], 0
    for weight, (_, layout) in zip(weights, products, strict=True):
        stop = start - (-layout.rows * layout.columns // BLOCK)
        matrices.append((start, stop, *layout.kernel_sizes(weight)))
        start = stop
    buffer = weights[0].new_empty(start * BLOCK, dtype=dtype)
    with on_device_of(buffer):
        kernels.block_diagonals_kernel[(start,)](
            weights, buffer, MATRICES=tuple(matrices), BLOCK=BLOCK
        )
    return [
        buffer[first * BLOCK :][: layout.rows * layout.columns].view(layout.rows, layout.columns)
        for (first, *_), (_, layout) in zip(matrices, products, strict=True)
    ]


def convolve_grouped(conv: nn.Conv2d, x: Tensor, layout: MatrixLayout | None = None) -> Tensor:
    """Compute conv(x) in the dtype of ``x``, with gradients.

    The weight's gradient is computed on the side stream if there is one.

    Args:
        conv: A 1x1 convolution without bias, with any number of groups.
        x: Activations (N, C, H, W), with the channels of the layout's columns.
        layout: The matrix: the channels of the output are its rows, and those of padding are zero.
            By default the channels are those of the convolution.
    """
    n, in_channels, height, width = x.shape
    if layout is None:
        layout = MatrixLayout(conv.out_channels, conv.in_channels, conv.groups)
    rows = channels_last(x).permute(0, 2, 3, 1).reshape(-1, in_channels)
    side_stream = current_side_stream() if uses_side_stream(conv) else None
    dense = _matrices.get().get((conv, layout))
    if dense is None or dense.dtype != x.dtype:
        dense = rows.new_empty(layout.rows, layout.columns)
        _launch("block_diagonal_kernel", conv.weight, dense, layout, size=dense.numel())
    out: Tensor = _GroupedProduct.apply(rows, conv.weight, dense, layout, side_stream)  # type: ignore[no-untyped-call]
    return out.view(n, height, width, layout.rows).permute(0, 3, 1, 2)


class _GroupedProduct(torch.autograd.Function):
    """Rows (pixels, in_channels) times the transposed matrix of a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        dense: Tensor,
        layout: MatrixLayout,
        side_stream: SideStream | None,
    ) -> Tensor:
        ctx.save_for_backward(rows, dense)
        ctx.weight, ctx.layout, ctx.side_stream = weight, layout, side_stream
        return rows @ dense.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, dense = ctx.saved_tensors
        weight, side_stream = ctx.weight, ctx.side_stream
        dy = dy.contiguous()
        # with the layout and dtype of the parameter, as fused optimizers need it
        gradient = torch.empty_like(weight)
        ddense = torch.empty(dense.shape, device=dense.device)

        def compute_weight_gradient() -> None:
            compute_linear_weight_gradient(dy, rows, ddense)
            _launch("diagonal_blocks_kernel", gradient, ddense, ctx.layout, size=gradient.numel())

        if side_stream is None:
            drows = dy @ dense if ctx.needs_input_grad[0] else None
            compute_weight_gradient()
            return drows, gradient, None, None, None
        side_stream.stream.wait_stream(torch.cuda.current_stream(rows.device))
        drows = dy @ dense if ctx.needs_input_grad[0] else None
        with side_stream.computing(weight, gradient, dy, rows, ddense):
            compute_weight_gradient()
        return drows, None, None, None, None


def _launch(name: str, weight: Tensor, dense: Tensor, layout: MatrixLayout, *, size: int) -> None:
    """Launch a kernel between a weight and its matrix, in the direction of the kernel."""
    from fedaux_pl.accelerate import kernels

    source, target = (weight, dense) if name == "block_diagonal_kernel" else (dense, weight)
    with on_device_of(weight):
        getattr(kernels, name)[(-(-size // BLOCK),)](
            source, target, size, *layout.kernel_sizes(weight), BLOCK=BLOCK
        )
