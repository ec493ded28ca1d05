"""The weights of layers in the precision of a pass, all of them cast at once.

Under autocast every layer casts its own weight and bias, and back again their gradients: for small
batches on a GPU these are as many kernels as the products themselves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd.function import once_differentiable
from torch.func import functional_call


def call_cast(module: nn.Module, device: torch.device, inputs: Mapping[str, Any]) -> Any:
    """Calls a module, whose result is that of a plain call.

    Args:
        module: What is called; only its ``nn.Linear`` layers take part in the casting.
        device: Whose autocast decides on the precision; without one this is a plain call.
        inputs: The named arguments.
    """
    kind = device.type
    casting = is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    weights = _linear_weights(module) if casting else {}
    if not weights:
        return module(**inputs)
    dtype = torch.get_autocast_dtype(kind)
    low = cast_all(list(weights.values()), dtype)
    return functional_call(module, dict(zip(weights, low, strict=True)), (), dict(inputs))


def cast_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tensors of float32 in another precision, cast at once, as are their gradients."""
    low: tuple[Tensor, ...] = _Cast.apply(dtype, *tensors)  # type: ignore[no-untyped-call]
    return low


def _linear_weights(module: nn.Module) -> dict[str, Tensor]:
    return {
        f"{place}.{name}": weight
        for place, layer in module.named_modules()
        if type(layer) is nn.Linear
        for name, weight in layer.named_parameters(recurse=False)
        if weight.dtype == torch.float32
    }


class _Cast(torch.autograd.Function):
    """Casts tensors of float32, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copies(tensors, dtype))

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [gradient for gradient in gradients if gradient is not None]
        back = iter(_copies(found, torch.float32))
        return (None, *(None if gradient is None else next(back) for gradient in gradients))


def _copies(tensors: Any, dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
