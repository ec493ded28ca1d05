"""BatchNorm with its residual and activation on channels-last activations, by Triton kernels.

Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift", ICML 2015. The arithmetic is in float32 whatever the activations are in.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.models.contexts import holding
from fedaux_pl.models.tiling import tiling

_adds: ContextVar[bool] = ContextVar("adds", default=False)


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
    y, again = _BatchNormAct.apply(  # type: ignore[no-untyped-call]
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
    y.again = again
    return y  # type: ignore[no-any-return]


@contextmanager
def gradients_added() -> Iterator[None]:
    """Within it what :func:`twice` gives is fast, for steps that end with ``backward()``."""
    with holding(_adds, True):
        yield


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations for two uses, such as a residual block's layers and its shortcut.

    Within :func:`gradients_added`, what :func:`batch_norm_act` gave adds the two gradients in the
    kernel that needs their sum, which saves a pass over them; unless somebody changed it or asked
    for its gradient meanwhile. Who asks afterwards, by ``torch.autograd.grad``, would find that of
    one use, and therefore elsewhere autograd adds them.
    """
    again: Tensor | None = getattr(x, "again", None) if _adds.get() else None
    untouched = again is not None and again.grad_fn is not None and again.grad_fn is x.grad_fn
    if again is None or not untouched or x._backward_hooks or x.retains_grad:
        return x, x
    return x, again


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
        kernels.apply_kernel[tiles.grid](
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
            **tiles.options("normalize", x.itemsize),
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
    ) -> tuple[Tensor, Tensor]:
        from fedaux_pl.models import kernels

        x = channels_last(x)
        rows, channels = _matrix(x)
        tiles = tiling(rows, channels, single=single)
        y = torch.empty_like(x)
        saved = torch.empty(2, channels, device=x.device)
        partials = saved if tiles.single else saved.new_empty(2, tiles.chunks, channels)
        unit = math.gcd(channels, 16)
        sizes = (rows, channels // unit, tiles.chunks, tiles.chunk_rows)
        with on_device_of(x):
            if not tiles.single:
                kernels.moments_kernel[tiles.grid](
                    x, partials, *sizes, UNIT=unit, **tiles.options("moments", x.itemsize)
                )
            kernels.normalize_kernel[tiles.grid](
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
                UNIT=unit,
                ACT=activation.kind,
                HAS_RESIDUAL=residual is not None,
                SINGLE=tiles.single,
                BLOCK_P=tiles.block_partials,
                **tiles.options("normalize", x.itemsize),
            )
        # without a residual the sign of the output follows from x, which is kept in any case
        mask_from_output = activation.relu and residual is not None
        ctx.save_for_backward(x, weight, bias, saved, *([y] if mask_from_output else []))
        ctx.activation, ctx.tiles, ctx.unit, ctx.sizes = activation, tiles, unit, sizes
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        from fedaux_pl.models import kernels

        given = [channels_last(dy) for dy in gradients if dy is not None]
        if not given:
            return (None,) * 8
        dy, other, two = given[0], given[-1], len(given) == 2
        x, weight, bias, saved, *output = ctx.saved_tensors
        tiles, activation = ctx.tiles, ctx.activation
        y = output[0] if output else x
        mask = 0 if not activation.relu else 2 if output else 1
        dx = torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        partials = saved if tiles.single else saved.new_empty(2, tiles.chunks, x.shape[1])
        # Of a residual without activation it is dy itself. Where there are two of them, the second
        # kernel reads their sum.
        write_dz = (bool(output) or two) and ctx.needs_input_grad[3]
        write_dz = write_dz or (two and not tiles.single)
        dz = torch.empty_like(x) if write_dz else dy
        constants = {"ACT": activation.kind, "UNIT": ctx.unit}
        with on_device_of(x):
            if not tiles.single:
                kernels.gradient_sums_kernel[tiles.grid](
                    dy,
                    other,
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
                    TWO=two,
                    WRITE_DZ=write_dz,
                    **constants,
                    **tiles.options("sums", x.itemsize),
                )
                if write_dz:  # the second kernel reads it instead of dy and y
                    dy, other, two, y, mask, write_dz = dz, dz, False, x, 0, False
            kernels.input_gradient_kernel[tiles.grid](
                dy,
                other,
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
                TWO=two,
                WRITE_DZ=write_dz,
                SINGLE=tiles.single,
                BLOCK_P=tiles.block_partials,
                **constants,
                **tiles.options("gradient", x.itemsize),
            )
        dresidual = dz if ctx.needs_input_grad[3] else None
        return dx, dweight, dbias, dresidual, None, None, None, None


def _matrix(x: Tensor) -> tuple[int, int]:
    """Rows and channels of activations that are channels-last."""
    return x.numel() // x.shape[1], x.shape[1]


def _buffers(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor]:
    """The running statistics, which are known to be there."""
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    if any(buffer is None for buffer in buffers):
        raise ValueError("the layer has no running statistics; use it as a module.")
    return buffers  # type: ignore[return-value]
