"""BatchNorm with its residual and activation on channels-last activations, by Triton kernels.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift", ICML 2015. The arithmetic is in float32 whatever the activations are in.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Fixed numbers and no tuning at run time, which would take its time at every start and let the
# order of summation, and with it the last bits of a result, depend on the machine.
TILE = 8192  # values that a program has in hand at once
WARPS = 8
PROGRAMS = 264  # two for each multiprocessor of a large GPU
BLOCK_CHANNELS = 32
# From so many rows on there is enough to do for twice the programs with half as much in hand, which
# on an H200 makes the backward pass of (1048576, 64) take 300 us and not 386.
MANY_ROWS = 2**19
# One kernel instead of two below so many rows, where starting a kernel costs more than it saves
# to share the rows among many programs. It has narrower blocks, as only they make up its grid.
SINGLE_ROWS = 1024
SINGLE_BLOCK_CHANNELS = 16


@dataclass(frozen=True)
class Tiling:
    """How (rows, channels) are shared among programs.

    Args:
        single: Whether a program sees all rows of its channels, so that one kernel is enough.
        block_rows: Rows of a tile, a power of two.
        block_channels: Channels of a tile, a power of two.
        chunk_rows: Rows of a program.
        chunks: Number of programs along the rows, none of them without rows.
        blocks: Number of programs along the channels.
    """

    single: bool
    block_rows: int
    block_channels: int
    chunk_rows: int
    chunks: int
    blocks: int


def tiling(rows: int, channels: int, *, single: bool | None = None) -> Tiling:
    """Share (rows, channels) among programs; ``single`` is for comparisons."""
    single = rows <= SINGLE_ROWS if single is None else single
    widest = SINGLE_BLOCK_CHANNELS if single else BLOCK_CHANNELS
    block_channels = min(widest, max(4, 1 << (channels - 1).bit_length()))
    blocks = -(-channels // block_channels)
    many = 2 if rows >= MANY_ROWS else 1
    block_rows = TILE // many // block_channels
    if single:
        return Tiling(True, block_rows, block_channels, rows, 1, blocks)
    share = -(-rows * blocks // (PROGRAMS * many))
    chunk_rows = -(-share // block_rows) * block_rows
    return Tiling(False, block_rows, block_channels, chunk_rows, -(-rows // chunk_rows), blocks)


@dataclass(frozen=True)
class Activation:
    """The identity, ReLU, or ReLU with an upper bound such as ReLU6.

    Args:
        relu: Whether negative values become zero.
        upper: Upper bound, for ReLU only.
    """

    relu: bool = True
    upper: float | None = None

    @property
    def kind(self) -> int:
        """The number that the kernels know it by."""
        if not self.relu:
            return 0
        return 1 if self.upper is None else 2

    @property
    def bound(self) -> float:
        """The upper bound as a number."""
        return math.inf if self.upper is None else self.upper


def batch_norm_act(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, activation: Activation
) -> Tensor:
    """Training step of a BatchNorm layer, with residual and activation.

    Args:
        norm: The layer, with affine parameters and running statistics, which move.
        x: Activations (N, C, H, W) with more than one value for each channel.
        residual: What is added before the activation, of the shape and dtype of ``x``.
        activation: The activation.
    """
    running_mean, running_var, batches = _buffers(norm)
    y: Tensor = _BatchNormAct.apply(  # type: ignore[no-untyped-call]
        x,
        norm.weight,
        norm.bias,
        residual,
        (running_mean, running_var, batches),
        (norm.momentum, norm.eps),
        activation,
        None,
    )
    if not torch.is_inference_mode_enabled():
        # autograd cannot see what a kernel of ours writes
        torch.autograd.graph.increment_version((running_mean, running_var, batches))
    return y


def batch_norm_act_eval(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, activation: Activation
) -> Tensor:
    """The same by the running statistics and without gradients, as in evaluation."""
    from fedaux_pl.models import kernels

    x = channels_last(x)
    rows, channels = _matrix(x)
    tiles = tiling(rows, channels, single=False)
    y = torch.empty_like(x)
    running_mean, running_var, _ = _buffers(norm)
    unit = math.gcd(channels, 16)
    with on_device_of(x):
        kernels.apply_kernel[tiles.blocks, tiles.chunks](
            x,
            x if residual is None else channels_last(residual),
            y,
            norm.weight,
            norm.bias,
            running_mean,
            running_var,
            rows,
            channels // unit,
            tiles.chunk_rows,
            norm.eps,
            activation.bound,
            UNIT=unit,
            ACT=activation.kind,
            HAS_RESIDUAL=residual is not None,
            BLOCK_M=tiles.block_rows,
            BLOCK_C=tiles.block_channels,
            num_warps=WARPS,
        )
    return y


def channels_last(x: Tensor) -> Tensor:
    """The tensor with its channels next to each other in memory, itself where they are."""
    return x.contiguous(memory_format=torch.channels_last)


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Makes a tensor's device the current one, which is where Triton starts its kernels."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


class _BatchNormAct(torch.autograd.Function):
    """The forward and the backward pass, each of one or two kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        buffers: tuple[Tensor, Tensor, Tensor],
        constants: tuple[float, float],
        activation: Activation,
        single: bool | None,
    ) -> Tensor:
        from fedaux_pl.models import kernels

        x = channels_last(x)
        rows, channels = _matrix(x)
        tiles = tiling(rows, channels, single=single)
        y = torch.empty_like(x)
        saved = torch.empty(2, channels, device=x.device)
        partials = saved if tiles.single else saved.new_empty(2, tiles.chunks, channels)
        unit = math.gcd(channels, 16)
        sizes = (rows, channels // unit, tiles.chunks, tiles.chunk_rows)
        grid = (tiles.blocks, tiles.chunks)
        blocks = {
            "UNIT": unit,
            "BLOCK_M": tiles.block_rows,
            "BLOCK_C": tiles.block_channels,
            "num_warps": WARPS,
        }
        with on_device_of(x):
            if not tiles.single:
                kernels.moments_kernel[grid](x, partials, *sizes, **blocks)
            kernels.normalize_kernel[grid](
                x,
                x if residual is None else channels_last(residual),
                y,
                partials,
                saved,
                weight,
                bias,
                *buffers,
                *sizes,
                *constants,
                activation.bound,
                ACT=activation.kind,
                HAS_RESIDUAL=residual is not None,
                SINGLE=tiles.single,
                BLOCK_P=_block_partials(tiles),
                **blocks,
            )
        # without a residual the sign of the output follows from x, which is kept in any case
        mask_from_output = activation.relu and residual is not None
        ctx.save_for_backward(x, weight, bias, saved, *([y] if mask_from_output else []))
        ctx.activation, ctx.tiles, ctx.blocks, ctx.sizes = activation, tiles, blocks, sizes
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from fedaux_pl.models import kernels

        x, weight, bias, saved, *output = ctx.saved_tensors
        tiles, activation = ctx.tiles, ctx.activation
        dy = channels_last(dy)
        y = output[0] if output else x
        mask = 0 if not activation.relu else 2 if output else 1
        dx = torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        partials = saved if tiles.single else saved.new_empty(2, tiles.chunks, x.shape[1])
        # of a residual without activation it is dy itself
        write_dz = bool(output) and ctx.needs_input_grad[3]
        dz = torch.empty_like(x) if write_dz else dy
        grid = (tiles.blocks, tiles.chunks)
        constants = {"ACT": activation.kind, **ctx.blocks}
        with on_device_of(x):
            if not tiles.single:
                kernels.gradient_sums_kernel[grid](
                    dy,
                    x,
                    y,
                    dz,
                    partials,
                    saved,
                    weight,
                    bias,
                    *ctx.sizes,
                    activation.bound,
                    MASK=mask,
                    WRITE_DZ=write_dz,
                    # It holds two sums of a tile in registers, of which there are not enough for
                    # whole ones: on an H200 those of a student take 198 us, with halves 165.
                    **{**constants, "BLOCK_M": tiles.block_rows // 2},
                )
                if write_dz:  # the second kernel reads it instead of dy and y
                    dy, y, mask, write_dz = dz, x, 0, False
            kernels.input_gradient_kernel[grid](
                dy,
                x,
                y,
                dx,
                dz,
                partials,
                saved,
                weight,
                bias,
                dweight,
                dbias,
                *ctx.sizes,
                activation.bound,
                MASK=mask,
                WRITE_DZ=write_dz,
                SINGLE=tiles.single,
                BLOCK_P=_block_partials(tiles),
                **constants,
            )
        dresidual = dz if ctx.needs_input_grad[3] else None
        return dx, dweight, dbias, dresidual, None, None, None, None


def _block_partials(tiles: Tiling) -> int:
    """How many chunks are merged at once."""
    return TILE // 2 // tiles.block_channels


def _matrix(x: Tensor) -> tuple[int, int]:
    """Rows and channels of activations that are channels-last."""
    return x.numel() // x.shape[1], x.shape[1]


def _buffers(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor]:
    """The running statistics, which are known to be there."""
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    if any(buffer is None for buffer in buffers):
        raise ValueError("the layer has no running statistics; use it as a module.")
    return buffers  # type: ignore[return-value]
