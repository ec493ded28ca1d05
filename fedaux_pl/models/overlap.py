"""Weight gradients beside the rest of a backward pass, on a second CUDA stream.

Nobody needs the gradient of a weight before the optimizer, while the gradient of the activations is
what the whole pass waits for. Within :func:`overlapping` the convolutions of ``conv_norm_act`` and
the layers of ``bert`` compute the former on a stream of its own, and :func:`join` hands it
over. What is small enough to leave a GPU idle gains by it.

Autograd never sees these gradients: it would add the contributions to a parameter, such as those of
a penalty or of a second use of the layer, on whichever stream it is on and without waiting. They
are put into ``grad`` by ``join`` alone, after the wait, so that neither sharing weights nor further
terms of a loss need any care. It follows that ``torch.autograd.grad`` does not find them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedaux_pl.models.batch_norm import channels_last
from fedaux_pl.models.contexts import holding
from fedaux_pl.models.stem import convolve_images, widen


class Side:
    """A stream and what is under way on it."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.gradients: list[tuple[Tensor, Tensor]] = []
        # Memory that is given back may be taken by the other stream at once, so that whatever the
        # side stream reads or writes is kept until it has been waited for.
        self.kept: list[tuple[Tensor, ...]] = []

    def takes(self, weights: Sequence[Tensor]) -> bool:
        """Whether gradients of these can be put into ``grad`` without autograd."""
        return all(
            weight.requires_grad
            and weight.is_leaf
            # which autograd would call
            and not weight._backward_hooks
            and not getattr(weight, "_post_accumulate_grad_hooks", None)
            for weight in weights
        )


_side: ContextVar[Side | None] = ContextVar("side", default=None)


@contextmanager
def overlapping(stream: torch.cuda.Stream) -> Iterator[None]:
    """Within it weight gradients are computed on a stream beside the current one.

    Every backward pass is to be followed by :func:`join`.

    Args:
        stream: The side stream.

    Raises:
        RuntimeError: At its end, if gradients were not handed over.
    """
    side = Side(stream)
    with holding(_side, side):
        yield
    if side.gradients:
        raise RuntimeError("weight gradients were left behind: call join() after backward().")


def join() -> None:
    """Wait for the side stream and add its gradients to the parameters'; without one, nothing."""
    side = _side.get()
    if side is None or not side.gradients:
        return
    torch.cuda.current_stream(side.gradients[0][0].device).wait_stream(side.stream)
    with torch.no_grad():
        for weight, gradient in side.gradients:
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
    side.gradients.clear()
    side.kept.clear()


def overlaps(conv: nn.Conv2d) -> bool:
    """Whether the weight gradient of an ordinary convolution is computed aside, here and now."""
    side = _side.get()
    return (
        side is not None
        and torch.is_grad_enabled()
        and side.takes([conv.weight])
        and conv.bias is None
        and not isinstance(conv.padding, str)
    )


def current_side() -> Side | None:
    """What :func:`overlapping` was entered with; a backward pass has to be told it."""
    return _side.get()


def weight_product(dy: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """The gradient dy' x of a linear layer's weight, float32 whatever the two are."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(dy.t(), x, out_dtype=torch.float32, out=out)
    return torch.mm(dy.float().t(), x.float(), out=out)


def weight_product_aside(side: Side, weights: Sequence[Tensor], dy: Tensor, x: Tensor) -> None:
    """The same on the side stream.

    Args:
        side: What the pass forward found by :func:`current_side`.
        weights: Weights that the side :meth:`~Side.takes`, whose outputs are next to each other.
        dy: The gradient of their outputs.
        x: Their input.
    """
    # on this stream's memory, see below
    gradient = torch.empty(dy.shape[1], x.shape[1], device=x.device)
    side.stream.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side.stream):
        weight_product(dy, x, gradient)
    parts = torch.split(gradient, [len(weight) for weight in weights])
    side.gradients.extend(zip(weights, parts, strict=True))
    side.kept.append((dy, x))


def convolve_overlapped(
    conv: nn.Conv2d, x: Tensor, *, stem: bool = False, cast: Tensor | None = None
) -> Tensor:
    """The convolution of ``x``, in its dtype, with the weight gradient aside.

    Args:
        conv: A convolution that :func:`overlaps`.
        x: Activations; beyond the convolution's channels there may be channels of zeros.
        stem: Whether our kernel for a stem takes the pass forward; ``x`` has 8 channels then.
        cast: The weight in the dtype of ``x``, where it is there already.
    """
    options = (conv.stride, conv.padding, conv.dilation)
    wide = widen(conv.weight.detach(), x.shape[1], x.dtype) if cast is None else cast.detach()
    wide = channels_last(wide)
    out: Tensor = _Convolution.apply(x, conv.weight, wide, options, stem, _side.get())  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """A convolution whose backward pass takes two streams."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        wide: Tensor,
        options: tuple[Any, Any, Any],
        stem: bool,
        side: Side,
    ) -> Tensor:
        x = channels_last(x)
        ctx.save_for_backward(x, wide)
        # The pass backward is in another thread, which knows nothing of the context.
        ctx.weight, ctx.options, ctx.side = weight, options, side
        return convolve_images(x, wide) if stem else torch.conv2d(x, wide, None, *options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, wide = ctx.saved_tensors
        weight, side = ctx.weight, ctx.side
        dy = channels_last(dy)
        # On this stream's memory, so that it may live on as any other gradient does. Layout and
        # dtype are the parameter's, as an optimizer in one kernel wants it.
        gradient = torch.empty_like(weight)

        def gradients(*wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
            found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
                dy, x, wide, None, *ctx.options, False, (0, 0), 1, wanted
            )
            return found

        side.stream.wait_stream(torch.cuda.current_stream(x.device))
        dx = gradients(True, False, False)[0] if ctx.needs_input_grad[0] else None
        with torch.cuda.stream(side.stream):
            gradient.copy_(gradients(False, True, False)[1][:, : weight.shape[1]])
        side.gradients.append((weight, gradient))
        side.kept.append((dy, x, wide))
        return dx, None, None, None, None, None
