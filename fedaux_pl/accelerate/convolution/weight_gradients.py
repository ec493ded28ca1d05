"""Weight gradients on a side stream, at the same time as the rest of the backward pass.

The backward pass waits for the gradients of activations, but nothing before the optimizer needs the
gradient of a weight. Within :func:`weight_gradients_on` the convolutions of ``conv_norm_act`` and
the linear layers of ``bert`` compute it on a side stream, and :func:`join_weight_gradients` waits
and adds it to ``grad``. This is faster where single kernels are too small to fill the GPU.

Autograd does not see these gradients. It would add several contributions to one parameter, such as
those of a penalty or of a second use of the layer, without waiting for the side stream. Only
:func:`join_weight_gradients` writes them to ``grad``, after the wait, so shared weights and further
loss terms are safe. ``torch.autograd.grad`` does not find these gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.accelerate.context import current, using
from fedaux_pl.accelerate.convolution.batch_norm import channels_last
from fedaux_pl.accelerate.convolution.image_stem import convolve_images, pad_weight


class SideStream:
    """A CUDA stream and the weight gradients that are computed on it.

    Args:
        stream: The stream.

    Attributes:
        pending: Weights and their gradients that are not in ``grad`` yet.
        in_use: Tensors that kernels on the stream read. They belong to the main stream, which could
            reuse freed memory at once, so they stay referenced until the main stream has waited.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.in_use: list[tuple[Tensor, ...]] = []

    @contextmanager
    def computing(self, weight: Tensor, gradient: Tensor, *in_use: Tensor) -> Iterator[None]:
        """Within it work runs on the stream: it writes the gradient of a weight."""
        with torch.cuda.stream(self.stream):
            yield
        self.pending.append((weight, gradient))
        self.in_use.append(in_use)

    def can_accumulate(self, weights: Sequence[Tensor]) -> bool:
        """Whether the gradients of these weights can be added to ``grad`` without autograd.

        Weights that are not leaves or have hooks need autograd.
        """
        return all(
            weight.requires_grad
            and weight.is_leaf
            and not weight._backward_hooks
            and not getattr(weight, "_post_accumulate_grad_hooks", None)
            for weight in weights
        )


@contextmanager
def weight_gradients_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Within it weight gradients are computed on a side stream.

    Call :func:`join_weight_gradients` after every backward pass.

    Args:
        stream: The side stream.

    Raises:
        RuntimeError: At the end, if gradients were not joined.
    """
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


def uses_side_stream(conv: nn.Conv2d) -> bool:
    """Whether the weight gradient of a convolution is computed on a side stream."""
    side_stream: SideStream | None = current().side_stream
    return (
        side_stream is not None
        and torch.is_grad_enabled()
        and side_stream.can_accumulate([conv.weight])
        and conv.bias is None
        and not isinstance(conv.padding, str)
    )


def compute_linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Compute dy.T @ x, the weight gradient of a linear layer, in float32."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(dy.t(), x, out_dtype=torch.float32, out=out)
    return torch.mm(dy.float().t(), x.float(), out=out)


def launch_linear_weight_gradient(
    side_stream: SideStream, weights: Sequence[Tensor], dy: Tensor, x: Tensor
) -> None:
    """Compute the weight gradient of linear layers with the same input on the side stream."""
    # allocated on the main stream, which uses it after the wait
    gradient = torch.empty(dy.shape[1], x.shape[1], device=x.device)
    side_stream.stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side_stream.stream):
        compute_linear_weight_gradient(dy, x, gradient)
    gradients = torch.split(gradient, [len(weight) for weight in weights])
    side_stream.pending.extend(zip(weights, gradients, strict=True))
    side_stream.in_use.append((dy, x))


def convolve_with_side_stream(
    conv: nn.Conv2d, x: Tensor, *, stem: bool = False, cast: Tensor | None = None
) -> Tensor:
    """Compute conv(x) in the dtype of ``x``, with the weight gradient on the side stream."""
    geometry = (conv.stride, conv.padding, conv.dilation)
    weight = conv.weight.detach()
    weight = pad_weight(weight, x.shape[1], x.dtype) if cast is None else cast.detach()
    out: Tensor = _SideStreamConvolution.apply(  # type: ignore[no-untyped-call]
        x, conv.weight, channels_last(weight), geometry, stem, current().side_stream
    )
    return out


class _SideStreamConvolution(torch.autograd.Function):
    """A convolution whose backward pass uses two streams.

    ``parameter`` is the weight as the optimizer has it, ``weight`` is padded and cast.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        parameter: Tensor,
        weight: Tensor,
        geometry: tuple[Any, Any, Any],
        stem: bool,
        side_stream: SideStream,
    ) -> Tensor:
        x = channels_last(x)
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.geometry, ctx.side_stream = parameter, geometry, side_stream
        return convolve_images(x, weight) if stem else torch.conv2d(x, weight, None, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        parameter, side_stream = ctx.parameter, ctx.side_stream
        dy = channels_last(dy)
        # Allocated on the main stream, because it outlives the wait as any other gradient does.
        # Fused optimizers need the layout and dtype of the parameter.
        gradient = torch.empty_like(parameter)

        def compute_gradients(*output_mask: bool) -> tuple[Tensor, Tensor, Tensor]:
            gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
                dy, x, weight, None, *ctx.geometry, False, (0, 0), 1, output_mask
            )
            return gradients

        side_stream.stream.wait_stream(torch.cuda.current_stream(x.device))
        dx = compute_gradients(True, False, False)[0] if ctx.needs_input_grad[0] else None
        with side_stream.computing(parameter, gradient, dy, x, weight):
            dweight = compute_gradients(False, True, False)[1]
            gradient.copy_(dweight[:, : parameter.shape[1]])
        return dx, None, None, None, None, None
