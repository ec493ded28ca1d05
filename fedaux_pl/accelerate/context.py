"""What layers need beside the arguments of ``forward``, and launches of kernels."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.errors import FedauxError

MIN_BLOCK = 16  # the smallest matrix that tensor cores multiply
MAX_CAUSE = 500  # characters of a compiler's error that a message has
# A product and the sum after it are one instruction. Triton 3.9 warns where this is not said,
# because Triton 3.10 changes the default, and results with it.
LAUNCH_OPTIONS = {"enable_fp_fusion": True}


class KernelError(FedauxError):
    """A kernel that cannot be compiled or launched on this GPU."""


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
    """Launch a kernel of ``fedaux_pl.accelerate.kernels`` on the device of its first tensor.

    An error of its compilation or launch is a ``KernelError``, after which plain PyTorch can run.
    Some cannot be recovered from and are a FedauxError: an error in a CUDA graph's capture, and one
    after which CUDA refuses all calls of the process, such as an illegal memory access.
    """
    from fedaux_pl.accelerate import kernels  # here: Triton is available on Linux only

    device = next(value.device for value in arguments if isinstance(value, Tensor))
    is_cuda = device.type == "cuda"
    try:
        with torch.cuda.device(device) if is_cuda else nullcontext():
            getattr(kernels, name)[grid](*arguments, **LAUNCH_OPTIONS, **options)
    except Exception as error:  # of Triton, its compiler, ptxas or the driver
        gpu = torch.cuda.get_device_name(device) if is_cuda else str(device)
        cause = shorten(f"{type(error).__name__}: {error}", MAX_CAUSE)
        problem = f"the kernel {name} failed on {gpu} ({cause})"
        if is_cuda and not _is_usable(device):
            raise FedauxError(
                f"{problem}, from which this process cannot recover: start it again, from its last "
                "checkpoint and with model.acceleration off"
            ) from error
        raise KernelError(problem) from error


def _is_usable(device: torch.device) -> bool:
    """Whether plain PyTorch can run on a device after an error."""
    if torch.cuda.is_current_stream_capturing():
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def ceil_div(number: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is at least ``number``."""
    return ceil_div(number, multiple) * multiple


def next_power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``number`` and ``least``."""
    return max(least, 1 << (number - 1).bit_length())
