"""What layers need beside the arguments of ``forward``, and launches of kernels."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

MIN_BLOCK = 16  # the smallest matrix that tensor cores multiply


@dataclass(frozen=True)
class PassSettings:
    """The settings of a pass through a network.

    A backward pass runs in another thread, which does not see them: forward passes save what it
    needs.
    """

    plain: bool = False  # fast versions run the plain modules, for comparisons
    # Whether the BatchNorm kernel adds the gradients of two branches, see ``batch_norm.branch``:
    # ``torch.autograd.grad`` of activations with two branches would return that of one of them.
    fuses_gradient_sums: bool = False
    # of all layers of ``pointwise_products``, by (convolution, layout)
    matrices: Mapping[Any, Tensor] = field(default_factory=dict)
    side_stream: Any = None  # the ``SideStream`` of weight gradients
    # Texts of a batch and rows that their tokens are packed into; no rows: not packed. More tokens
    # than rows give NaN.
    packed: tuple[int, int] = (0, 0)


_current: ContextVar[PassSettings] = ContextVar("context", default=PassSettings())  # noqa: B039 - frozen
current = _current.get


@contextmanager
def using(**changes: Any) -> Iterator[None]:
    """Change fields of the current context within a ``with`` block."""
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield
    finally:
        _current.reset(token)


def launch(name: str, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a kernel of ``fedaux_pl.accelerate.kernels`` on the device of its first tensor."""
    from fedaux_pl.accelerate import kernels  # here: Triton is available on Linux only

    first = next(value for value in arguments if isinstance(value, Tensor))
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        getattr(kernels, name)[grid](*arguments, **options)


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


def next_power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``number`` and ``least``."""
    return max(least, 1 << (number - 1).bit_length())
