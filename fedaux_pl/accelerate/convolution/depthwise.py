"""Depthwise 3x3 convolutions at the speed of memory, which cuDNN's in half precision do not reach.

The forward pass is one kernel, in evaluation with the norm and the activation. The backward pass is
one kernel for both gradients, and a small one that adds up partial sums of the weight's gradient.
"""

import math
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import ceil_div, launch, next_power_of_two
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, Activation, channels_last
from fedaux_pl.accelerate.convolution.weight_gradients import (
    SideStream,
    fork,
    side_stream_for,
    write_gradient,
)
from fedaux_pl.accelerate.eligibility import ALIGNMENT, is_plain_conv

BLOCK_CHANNELS = 32
# A thread has four values. With eight, the backward kernel needs 237 of 255 registers.
TILE = 512  # columns times channels of a tile
WARPS = 4
BACKWARD_PROGRAMS = 528  # four on each of an H200's 132 multiprocessors; each writes partial sums
# Without sums: for 5,000 images more programs are a fifth faster, and larger tiles a tenth with
# stride 1.
PROGRAMS = 4224
STRIDE_1_TILE = 1024
SUM_BLOCK = {"BLOCK_R": 64, "BLOCK_W": 32, "num_warps": 4}  # tiles of the sum of partial sums


def is_depthwise(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether our kernels support a convolution: depthwise, 3x3, padding 1, stride 1 or 2."""
    return (
        is_plain_conv(conv)
        and conv.groups == conv.in_channels == conv.out_channels
        and conv.kernel_size == (3, 3)
        and conv.stride in ((1, 1), (2, 2))
        and conv.padding == conv.dilation == (1, 1)
        and conv.bias is None
        and conv.weight[:, 0].is_contiguous()
    )


def _plan(
    x: Tensor,
    weight: Tensor | None,
    stride: int,
    *,
    programs: int,
    tile: int,
    pitch: int,
) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """The grid, sizes and constants of both kernels; an output pixel has ``pitch`` values."""
    n, channels, height, width = x.shape
    out_height = (height - 1) // stride + 1
    out_width = (width - 1) // stride + 1
    parameters = channels if weight is None else len(weight)
    unit = math.gcd(channels, pitch, ALIGNMENT)
    block_channels = min(BLOCK_CHANNELS, next_power_of_two(channels, 4))
    block = tile // block_channels
    channel_blocks = ceil_div(channels, block_channels)
    columns = n * out_width
    chunk = ceil_div(columns * channel_blocks, programs * block) * block
    grid = channel_blocks, ceil_div(columns, chunk)
    units = channels // unit
    sizes = columns, units, parameters, chunk, height, width, out_height, out_width
    constants = {
        "UNIT": unit,
        "STRIDE": stride,
        "POOL": weight is None,
        "BLOCK_M": block,
        "BLOCK_C": block_channels,
        "num_warps": WARPS,
    }
    return grid, sizes, constants


def depthwise_norm_act_eval(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    x: Tensor,
    activation: Activation,
) -> Tensor:
    """Compute act(norm(conv(x))) in evaluation mode, in one kernel and without gradients."""
    x = channels_last(x)
    return convolve_depthwise_eval(x, conv.weight, conv.stride[0], norm, activation)


def average_pool(x: Tensor) -> Tensor:
    """Compute ``F.avg_pool2d(x, 3, stride=2, padding=1)`` of channels-last activations.

    It is a depthwise convolution whose weights are 1/9. PyTorch's kernel takes four times as long,
    and its gradients are wrong (https://github.com/pytorch/pytorch/issues/188344).
    """
    pooled: Tensor = _Depthwise.apply(x, None, 2, None)
    return pooled


def convolve_depthwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute conv(x) in the dtype of ``x``, with gradients; padding channels stay zero."""
    out: Tensor = _Depthwise.apply(x, conv.weight, conv.stride[0], side_stream_for(conv))
    return out


def convolve_depthwise_eval(
    x: Tensor,
    weight: Tensor | None,
    stride: int,
    norm: nn.BatchNorm2d | None = None,
    activation: Activation = LINEAR,
    out: Tensor | None = None,
) -> Tensor:
    """Compute act(norm(conv(x))) or act(conv(x)) in one kernel and without gradients.

    The weight is (C or less, 1, 3, 3), float32; outputs of further channels are zero. None is
    average pooling. The result is written to ``out``, channels of channels-last activations.
    """
    tile = STRIDE_1_TILE if stride == 1 else TILE
    pitch = x.shape[1] if out is None else out.stride(3)
    grid, sizes, constants = _plan(x, weight, stride, programs=PROGRAMS, tile=tile, pitch=pitch)
    if out is None:
        out = x.new_empty(len(x), *sizes[-2:], x.shape[1]).movedim(3, 1)
    weight = x if weight is None else weight  # not read
    statistics: tuple[Tensor | None, ...] = (weight,) * 4  # not read
    if norm is not None:
        statistics = norm.weight, norm.bias, norm.running_mean, norm.running_var
    launch("depthwise_kernel", grid,
        x, weight, out, *statistics, *sizes, pitch // constants["UNIT"],
        0.0 if norm is None else norm.eps, activation.upper,
        HAS_NORM=norm is not None, ACT=activation.kind, **constants,
    )  # fmt: skip
    return out


class _Depthwise(torch.autograd.Function):
    """The convolution; without a weight, average pooling."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        stride: int,
        side_stream: SideStream | None,
    ) -> Tensor:
        x = channels_last(x)
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        ctx.side_stream = side_stream
        return convolve_depthwise_eval(x, weight, stride)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grid, sizes, constants = _plan(
            x, weight, ctx.stride, programs=BACKWARD_PROGRAMS, tile=TILE, pitch=x.shape[1]
        )
        needs_dx = ctx.needs_input_grad[0]
        dx = torch.empty_like(x) if needs_dx else x
        partials = x
        if weight is not None:
            partials = torch.empty(grid[1], weight.numel(), device=x.device)
        launch("depthwise_backward_kernel", grid,
            channels_last(dy), x, x if weight is None else weight, dx, partials, *sizes,
            NEEDS_DX=needs_dx, **constants,
        )  # fmt: skip
        dx = dx if needs_dx else None
        if weight is None:
            return dx, None, None, None

        gradient = fork(ctx.side_stream, weight)

        def write() -> None:
            chunks, size = partials.shape
            grid = (ceil_div(size, SUM_BLOCK["BLOCK_W"]),)
            launch("sum_partials_kernel", grid, partials, gradient, chunks, size, **SUM_BLOCK)

        dweight = write_gradient(ctx.side_stream, weight, gradient, write, partials)
        return dx, dweight, None, None
