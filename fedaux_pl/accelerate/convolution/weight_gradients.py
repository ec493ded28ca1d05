"""Weight gradients on a side stream, at the same time as the rest of the backward pass.

The backward pass waits for the gradients of activations, but nothing before the optimizer needs the
gradient of a weight. Within ``weight_gradients_on`` convolutions and the linear layers of ``bert``
compute it on a side stream. This is faster where single kernels are too small to fill the GPU.

Autograd does not see these gradients: it would add several contributions to one parameter without
waiting for the side stream. Only ``join_weight_gradients`` writes them to ``grad``, after the wait,
so shared weights and further loss terms are safe. ``torch.autograd.grad`` does not find them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import current, using
from fedaux_pl.accelerate.convolution.batch_norm import channels_last
from fedaux_pl.accelerate.convolution.image_stem import convolve_images, pad_weight


class SideStream:
    """A CUDA stream and the weight gradients that are computed on it."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.pending: list[tuple[Tensor, Tensor]] = []  # weights, gradients not in ``grad`` yet
        # Tensors that kernels on the stream read. They belong to the main stream, which could reuse
        # freed memory at once, so they stay referenced until it has waited.
        self.in_use: list[tuple[Tensor, ...]] = []

    def can_accumulate(self, weights: Sequence[Tensor]) -> bool:
        """Whether gradients can be added to ``grad`` without autograd: leaves without hooks."""
        return all(
            weight.requires_grad
            and weight.is_leaf
            and not weight._backward_hooks
            and not getattr(weight, "_post_accumulate_grad_hooks", None)
            for weight in weights
        )

    def wait(self, device: torch.device) -> None:
        """Let the stream wait for the main stream."""
        self.stream.wait_stream(torch.cuda.current_stream(device))

    def compute(
        self,
        gradients: Iterable[tuple[Tensor, Tensor]],
        write: Callable[[], object],
        in_use: tuple[Tensor, ...],
    ) -> None:
        """Write the gradients of weights, reading the tensors ``in_use``."""
        with torch.cuda.stream(self.stream):
            write()
        self.pending.extend(gradients)
        self.in_use.append(in_use)


@contextmanager
def weight_gradients_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Compute weight gradients on a side stream; join them after every backward pass."""
    side_stream = SideStream(stream)
    with using(side_stream=side_stream):
        yield
    if side_stream.pending:
        raise RuntimeError(
            f"{len(side_stream.pending)} weight gradients were not added to their parameters; call "
            "join_weight_gradients() after backward()."
        )


def join_weight_gradients() -> None:
    """Wait for the side stream and add its gradients to ``grad``; no-op without a side stream."""
    side_stream: SideStream | None = current().side_stream
    if side_stream is None or not side_stream.pending:
        return
    device = side_stream.pending[0][0].device
    torch.cuda.current_stream(device).wait_stream(side_stream.stream)
    with torch.no_grad():
        for weight, gradient in side_stream.pending:
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
    side_stream.pending.clear()
    side_stream.in_use.clear()


def side_stream_for(conv: nn.Conv2d) -> SideStream | None:
    """The side stream on which the weight gradient of a convolution is computed, or None."""
    side_stream: SideStream | None = current().side_stream
    is_usable = (
        side_stream is not None
        and torch.is_grad_enabled()
        and side_stream.can_accumulate([conv.weight])
        and conv.bias is None
        and not isinstance(conv.padding, str)
    )
    return side_stream if is_usable else None


def fork(side_stream: SideStream | None, weight: Tensor) -> Tensor:
    """Let the side stream, if any, wait for the main stream; return an empty gradient of a weight.

    The gradient belongs to the main stream, because it outlives the join. It is allocated before
    the main stream launches anything else, whose memory it could get.
    """
    gradient = torch.empty_like(weight)
    if side_stream is not None:
        side_stream.wait(weight.device)
    return gradient


def write_gradient(
    side_stream: SideStream | None,
    weight: Tensor,
    gradient: Tensor,
    write: Callable[[], object],
    *in_use: Tensor,
) -> Tensor | None:
    """Write a gradient that ``fork`` allocated, on the side stream if there is one.

    Return the gradient for autograd; None if ``join_weight_gradients`` adds it.
    """
    if side_stream is None:
        write()
        return gradient
    side_stream.compute([(weight, gradient)], write, in_use)
    return None


def compute_linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Compute dy.T @ x, the weight gradient of a linear layer, in float32."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(dy.t(), x, out_dtype=torch.float32, out=out)
    return torch.mm(dy.float().t(), x.float(), out=out)


def convolve(conv: nn.Conv2d, x: Tensor, *, stem: bool) -> Tensor:
    """Compute conv(x) in the dtype of ``x``, whose channels can be padded, with gradients."""
    out: Tensor = _Convolution.apply(
        x, conv.weight, (conv.stride, conv.padding, conv.dilation), stem, side_stream_for(conv)
    )
    return out


class _Convolution(torch.autograd.Function):
    """A convolution whose backward pass is cuDNN's, on two streams if there is a side stream."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        parameter: Tensor,
        geometry: tuple[Any, Any, Any],
        stem: bool,
        side_stream: SideStream | None,
    ) -> Tensor:
        x = channels_last(x)
        weight = pad_weight(parameter, x.shape[1], x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.parameter = parameter
        ctx.geometry = geometry
        ctx.side_stream = side_stream
        return convolve_images(x, weight) if stem else torch.conv2d(x, weight, None, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        parameter = ctx.parameter
        dy = channels_last(dy)
        arguments = dy, x, weight, None, *ctx.geometry, False, (0, 0), 1
        compute = partial(torch.ops.aten.convolution_backward, *arguments)
        needs_dx, needs_dweight, *_ = ctx.needs_input_grad
        gradient = fork(ctx.side_stream, parameter)
        dx = compute((True, False, False))[0] if needs_dx else None
        if not needs_dweight:
            return dx, None, None, None, None

        def write() -> None:
            gradient.copy_(compute((False, True, False))[1][:, : parameter.shape[1]])

        dweight = write_gradient(ctx.side_stream, parameter, gradient, write, dy, x, weight)
        return dx, dweight, None, None, None
