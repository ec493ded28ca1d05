"""Casting the weights of many layers to the dtype of autocast at once.

Under autocast every layer casts its own weight and bias, and their gradients back. For small
batches on a GPU these casts launch as many kernels as the matrix products.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd.function import once_differentiable
from torch.func import functional_call


def call_cast(module: nn.Module, device: torch.device, inputs: Mapping[str, Any]) -> Any:
    """Call a module; the weights of its ``nn.Linear`` layers are cast for autocast all at once."""
    kind = device.type
    is_casting = is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    weights = _linear_weights(module) if is_casting else {}
    if not weights:
        return module(**inputs)
    cast = _Cast.apply(torch.get_autocast_dtype(kind), *weights.values())  # type: ignore[no-untyped-call]
    return functional_call(module, dict(zip(weights, cast, strict=True)), (), dict(inputs))


def _linear_weights(module: nn.Module) -> dict[str, Tensor]:
    return {
        f"{path}.{name}": weight
        for path, layer in module.named_modules()
        if type(layer) is nn.Linear
        for name, weight in layer.named_parameters(recurse=False)
        if weight.dtype == torch.float32
    }


class _Cast(torch.autograd.Function):
    """Casts float32 tensors to another dtype at once, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_copy_to(dtype, tensors))

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        cast = iter(_copy_to(torch.float32, given))
        return (None, *(None if gradient is None else next(cast) for gradient in gradients))


def _copy_to(dtype: torch.dtype, tensors: Sequence[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
