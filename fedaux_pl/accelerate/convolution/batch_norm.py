"""BatchNorm, residual and activation of channels-last activations in two Triton kernels.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift", ICML 2015. The arithmetic is float32 for activations of any dtype.

The tiles were measured on an H200 with ResNet-8, in steps of 128 images. They are fixed: with
tuning at run time the last bits of a result would depend on the machine.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import ceil_div, current, launch, next_power_of_two
from fedaux_pl.accelerate.eligibility import ALIGNMENT

PROGRAMS = 264  # approximately; two on each of an H200's 132 multiprocessors
TILE_SIZE = 8192  # values in a tile; a program processes whole tiles
WARPS = 8
BLOCK_CHANNELS = 32
# Large inputs with many channels: wider blocks, whose rows are longer pieces of memory. BatchNorm
# takes 5.7 ms of a step of ShuffleNet with 1,024 images this way, 6.1 ms otherwise.
WIDE_BLOCK_CHANNELS = 64
WIDE_VALUES = 2**24
MANY_CHANNELS = 100
STAGES = 3  # of pipelined loops


class Activation(NamedTuple):
    """The identity, ReLU, or ReLU with an upper bound."""

    kind: int  # ``ACT`` of the kernels: LINEAR, RELU or CLAMP
    upper: float = math.inf


LINEAR = Activation(0)
RELU = Activation(1)
RELU6 = Activation(2, 6.0)


class Moments(NamedTuple):
    """The moments of chunks of activations, from the kernel that computed the activations."""

    partials: Tensor  # means and sums of squared deviations, (2, chunks, channels), float32
    chunk_rows: int  # pixels of each chunk but the last, which has the rest


class Tiling(NamedTuple):
    """How a kernel divides activations of shape (rows, channels) into programs and tiles."""

    block_channels: int  # channels of a tile and of a program, a power of two
    chunk_rows: int  # rows of a program
    grid: tuple[int, int]  # channel blocks, chunks of rows with at least one row

    @property
    def block_partials(self) -> int:
        """How many chunks' partial results are merged in one iteration."""
        return max(1, TILE_SIZE // 2 // self.block_channels)

    def launch_options(self, itemsize: int, *, pipelined: bool = True) -> dict[str, int]:
        """Return the compile-time arguments of a kernel, which may load half tiles ahead.

        The loads of all stages must fit into 100 KB of shared memory; those of float32 do not.
        """
        tile = TILE_SIZE // 2 if pipelined else TILE_SIZE
        return {
            "BLOCK_M": tile // self.block_channels,
            "BLOCK_C": self.block_channels,
            "STAGES": STAGES if pipelined and itemsize == 2 else 1,
            "num_warps": WARPS,
        }


def choose_tiling(rows: int, channels: int) -> Tiling:
    """Choose the grid and the tiles for activations of shape (rows, channels)."""
    is_wide = channels >= MANY_CHANNELS and rows * channels >= WIDE_VALUES
    max_block = WIDE_BLOCK_CHANNELS if is_wide else BLOCK_CHANNELS
    block_channels = min(max_block, next_power_of_two(channels, 4))
    channel_blocks = ceil_div(channels, block_channels)
    block_rows = TILE_SIZE // block_channels
    chunk_rows = ceil_div(rows * channel_blocks, PROGRAMS * block_rows) * block_rows
    return Tiling(block_channels, chunk_rows, (channel_blocks, ceil_div(rows, chunk_rows)))


def batch_norm_act(
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    activation: Activation,
    moments: Moments | None = None,
    shuffled_groups: int = 0,
) -> Tensor:
    """Compute act(norm(x) + residual) in training mode, with the statistics of the batch.

    ``x`` has more than one value per channel; known ``moments`` save a pass over it. With
    ``shuffled_groups`` its first channels are those of the layer after a channel shuffle with so
    many groups, 1 for their own order. Further channels are padding, which stays zero.
    """
    y, shortcut_input = _BatchNormAct.apply(
        x, norm.weight, norm.bias, residual, norm, activation, moments, shuffled_groups
    )
    if not torch.is_inference_mode_enabled():
        # autograd does not see that the kernel writes to the buffers
        torch.autograd.graph.increment_version(list(norm.buffers()))
    y.shortcut_input = shortcut_input
    return y  # type: ignore[no-any-return]


def branch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of two branches, such as the layers of a residual block and its shortcut.

    If the context has ``fuses_gradient_sums`` and ``x`` is a result of ``batch_norm_act``, they are
    two outputs of its autograd node, whose backward kernel adds their gradients. If ``x`` was
    changed in place, has hooks or retains its gradient, both get ``x`` and autograd adds.
    """
    shortcut_input: Tensor | None = getattr(x, "shortcut_input", None)
    if not current().fuses_gradient_sums or shortcut_input is None or x.grad_fn is None:
        return x, x
    if shortcut_input.grad_fn is not x.grad_fn or x._backward_hooks or x.retains_grad:
        return x, x
    return x, shortcut_input


def batch_norm_act_eval(
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    activation: Activation,
) -> Tensor:
    """Compute act(norm(x) + residual) in evaluation mode: running statistics, no gradients."""
    x = channels_last(x)
    return _normalize(norm, x, residual, activation, Moments(x, 0), x, training=False)


def channels_last(x: Tensor) -> Tensor:
    """The tensor in channels-last memory format; no copy if it is in that format already."""
    return x.contiguous(memory_format=torch.channels_last)


def _normalize(
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    activation: Activation,
    moments: Moments,
    statistics: Tensor,
    *,
    training: bool,
    shuffled_groups: int = 0,
) -> Tensor:
    """Write the output; in training also ``statistics`` and the buffers of the layer."""
    channels = x.shape[1]
    rows = x.numel() // channels
    unit = math.gcd(channels, ALIGNMENT)
    tiling = choose_tiling(rows, channels)
    y = torch.empty_like(x)
    launch("normalize_kernel", tiling.grid,
        x, x if residual is None else channels_last(residual), y, moments.partials, statistics,
        norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        rows, channels // unit, norm.num_features,
        tiling.chunk_rows, moments.partials.shape[1], moments.chunk_rows,
        norm.momentum, norm.eps, activation.upper,
        TRAINING=training, UNIT=unit, GROUPS=shuffled_groups,
        ACT=activation.kind, HAS_RESIDUAL=residual is not None, BLOCK_P=tiling.block_partials,
        **tiling.launch_options(x.itemsize, pipelined=False),
    )  # fmt: skip
    return y


class _BatchNormAct(torch.autograd.Function):
    """Two kernels each way; the outputs share their memory, one for each branch, see ``branch``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm2d,
        activation: Activation,
        moments: Moments | None,
        shuffled_groups: int,
    ) -> tuple[Tensor, Tensor]:
        x = channels_last(x)
        channels = x.shape[1]
        rows = x.numel() // channels
        unit = math.gcd(channels, ALIGNMENT)
        tiling = choose_tiling(rows, channels)
        statistics = torch.empty(2, channels, device=x.device)
        if moments is None:
            chunks = tiling.grid[1]
            moments = Moments(statistics.new_empty(2, chunks, channels), tiling.chunk_rows)
            launch("moments_kernel", tiling.grid,
                x, moments.partials, rows, channels // unit, chunks, tiling.chunk_rows,
                UNIT=unit, **tiling.launch_options(x.itemsize),
            )  # fmt: skip
        y = _normalize(
            norm, x, residual, activation, moments, statistics,
            training=True, shuffled_groups=shuffled_groups,
        )  # fmt: skip
        # Without a residual the backward pass recomputes the output from x, which is saved anyway.
        saves_output = activation != LINEAR and residual is not None
        ctx.save_for_backward(x, weight, bias, statistics, y if saves_output else None)
        ctx.activation = activation
        ctx.tiling = tiling
        ctx.sizes = (rows, channels // unit, len(weight), tiling.grid[1], tiling.chunk_rows)
        ctx.constants = {"UNIT": unit, "GROUPS": shuffled_groups, "ACT": activation.kind}
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        received = [channels_last(dy) for dy in gradients if dy is not None]
        if not received:
            return (None,) * 8
        dy = received[0]
        dy2 = received[-1]
        has_dy2 = len(received) == 2
        x, weight, bias, statistics, output = ctx.saved_tensors
        tiling = ctx.tiling
        activation = ctx.activation
        y = x if output is None else output
        # MASK_NONE, MASK_FROM_INPUT or MASK_FROM_OUTPUT of the kernels
        mask = 0
        if activation != LINEAR:
            mask = 1 if output is None else 2
        dx = torch.empty_like(x)
        dweight = torch.empty_like(weight)
        dbias = torch.empty_like(bias)
        partials = statistics.new_empty(2, tiling.grid[1], x.shape[1])
        # dz, the gradient before the activation, is the gradient of the residual. Without an
        # activation and with one incoming gradient it is dy itself. If the first kernel writes dz,
        # the second one reads it in place of dy, dy2 and y.
        write_dz = has_dy2 or (output is not None and ctx.needs_input_grad[3])
        dz = torch.empty_like(x) if write_dz else dy
        launch("gradient_sums_kernel", tiling.grid,
            dy, dy2, x, y, dz, partials, statistics, weight, bias,
            *ctx.sizes, activation.upper,
            MASK=mask, HAS_DY2=has_dy2, WRITE_DZ=write_dz, **ctx.constants,
            **tiling.launch_options(x.itemsize),
        )  # fmt: skip
        if write_dz:
            y = x
            mask = 0
        launch("input_gradient_kernel", tiling.grid,
            dz, x, y, dx, partials, statistics, weight, bias, dweight, dbias,
            *ctx.sizes, activation.upper,
            MASK=mask, BLOCK_P=tiling.block_partials, **ctx.constants,
            **tiling.launch_options(x.itemsize),
        )  # fmt: skip
        dresidual = dz if ctx.needs_input_grad[3] else None
        return dx, dweight, dbias, dresidual, None, None, None, None
