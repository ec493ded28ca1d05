"""Whether our kernels can run: on a device, on a tensor, in place of a module."""

from functools import cache
from importlib.util import find_spec
from typing import TypeGuard

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import current

HALF = (torch.bfloat16, torch.float16)
ALIGNMENT = 8  # half-precision values in one 16-byte access of tensor cores and kernels


def fusable(x: Tensor) -> bool:
    """Whether our kernels can run on a tensor in the current context."""
    return (
        not torch.compiler.is_compiling()  # first: torch.compile must not trace the rest
        and has_kernels(x.device)
        and not current().plain
        and not torch._C._are_functorch_transforms_active()
    )


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether our kernels support a device: NVIDIA GPUs since Ampere, with Triton."""
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which convolutions and linear layers compute: autocast's or that of x."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def has_hooks(module: nn.Module) -> bool:
    """Whether a call does more than ``forward`` of the class: hooks or a patched ``forward``."""
    forward = module._forward_hooks or module._forward_pre_hooks
    backward = module._backward_hooks or module._backward_pre_hooks
    return bool("forward" in module.__dict__ or forward or backward)


def is_plain_conv(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a convolution in float32 with zero padding and no hooks."""
    return (
        type(conv) is nn.Conv2d
        and conv.padding_mode == "zeros"
        and conv.weight.dtype == torch.float32
        and not has_hooks(conv)
    )


def fits_input(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether ``x`` is an input of a convolution; the module raises the error if it is not."""
    return x.ndim == 4 and x.shape[1] == conv.in_channels and x.numel() > 0


def is_bias_free_conv(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a convolution without groups and bias, with its padding in pixels."""
    return (
        is_plain_conv(conv)
        and conv.groups == 1
        and conv.bias is None
        and not isinstance(conv.padding, str)
    )


def is_pointwise(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a 1x1 convolution without bias, with any number of groups.

    Kernels read its weight row by row, so transposed weights and slices of others do not count.
    """
    return (
        is_plain_conv(conv)
        and conv.kernel_size == conv.stride == (1, 1)
        and conv.padding == (0, 0)
        and conv.bias is None
        and conv.weight[:, :, 0, 0].is_contiguous()
    )


def is_standard_batch_norm(norm: nn.Module) -> bool:
    """Whether a layer is BatchNorm with float32 parameters and running statistics, and no hooks."""
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return not has_hooks(norm) and all(
        t is not None and t.dtype == torch.float32 and t.is_contiguous() for t in state
    )
