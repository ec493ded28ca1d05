"""Grouped 1x1 convolutions as matrix products with a block-diagonal weight.

Groups are narrower than a tile of the tensor cores, so the zeros cost little, and much less than
cuDNN's two conversions of the activations' layout. The matrix is written by one kernel, where
``torch.block_diag`` and the cast take four, and its gradient is read by one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.convolution.batch_norm import channels_last, on_device_of
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    compute_linear_weight_gradient,
    current_side_stream,
    uses_side_stream,
)

BLOCK = 1024


def convolve_grouped(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute conv(x) in the dtype of ``x``, with gradients.

    The weight's gradient is computed on the side stream if there is one.

    Args:
        conv: A grouped 1x1 convolution without bias.
        x: Activations (N, C, H, W).
    """
    n, _, height, width = x.shape
    rows = channels_last(x).permute(0, 2, 3, 1).reshape(-1, conv.in_channels)
    side_stream = current_side_stream() if uses_side_stream(conv) else None
    out: Tensor = _GroupedProduct.apply(rows, conv.weight, conv.groups, side_stream)  # type: ignore[no-untyped-call]
    return out.view(n, height, width, conv.out_channels).permute(0, 3, 1, 2)


class _GroupedProduct(torch.autograd.Function):
    """Rows (pixels, in_channels) times the transposed block-diagonal matrix of a weight."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, groups: int, side_stream: SideStream | None
    ) -> Tensor:
        dense = rows.new_empty(len(weight), rows.shape[1])
        _launch("block_diagonal_kernel", weight, dense, groups, size=dense.numel())
        ctx.save_for_backward(rows, dense)
        ctx.weight, ctx.groups, ctx.side_stream = weight, groups, side_stream
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
            _launch("diagonal_blocks_kernel", gradient, ddense, ctx.groups, size=gradient.numel())

        if side_stream is None:
            drows = dy @ dense if ctx.needs_input_grad[0] else None
            compute_weight_gradient()
            return drows, gradient, None, None
        side_stream.stream.wait_stream(torch.cuda.current_stream(rows.device))
        drows = dy @ dense if ctx.needs_input_grad[0] else None
        with torch.cuda.stream(side_stream.stream):
            compute_weight_gradient()
        side_stream.pending.append((weight, gradient))
        side_stream.in_use.append((dy, rows, ddense))
        return drows, None, None, None


def _launch(name: str, weight: Tensor, dense: Tensor, groups: int, *, size: int) -> None:
    """Launch a kernel between a weight and its matrix, in the direction of the kernel."""
    from fedaux_pl.accelerate import kernels

    channels, group_in = weight.shape[:2]
    source, target = (weight, dense) if name == "block_diagonal_kernel" else (dense, weight)
    with on_device_of(weight):
        getattr(kernels, name)[(-(-size // BLOCK),)](
            source, target, size, dense.shape[1], group_in, channels // groups, BLOCK=BLOCK
        )
