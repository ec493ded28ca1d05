"""Which fused computation a convolution and its norm layer are eligible for."""

from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.convolution.batch_norm import RELU, Activation
from fedaux_pl.accelerate.convolution.image_stem import ALIGNMENT
from fedaux_pl.accelerate.eligibility import (
    HALF,
    compute_dtype,
    fusable,
    has_hooks,
    is_plain_conv,
)

Path = Literal["plain", "train", "apply", "fold"]


def choose_path(
    conv: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None, activation: Activation
) -> Path:
    """Choose how act(norm(conv(x)) + residual) is computed.

    Returns:
        ``"plain"``: the modules themselves. ``"train"``: BatchNorm with the batch's statistics.
        ``"apply"``: BatchNorm with the running statistics, after the convolution. ``"fold"``: the
        running statistics folded into the convolution's weight, with residual and ReLU in the same
        cuDNN kernel.
    """
    dtype = compute_dtype(x)
    if not fusable(x) or not is_standard_batch_norm(norm):
        return "plain"
    if dtype not in (*HALF, torch.float32) or (residual is not None and residual.dtype != dtype):
        return "plain"
    if norm.training:
        return "train"
    if torch.is_grad_enabled():
        return "plain"
    is_cudnns = is_bias_free_conv(conv) and conv.out_channels % ALIGNMENT == 0
    if activation == RELU and dtype in HALF and is_cudnns and torch.backends.cudnn.enabled:
        return "fold"
    return "apply"


def is_standard_batch_norm(norm: nn.Module) -> bool:
    """Whether a layer is BatchNorm with float32 parameters and running statistics, and no hooks."""
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return (
        norm.num_batches_tracked is not None
        and all(t is not None and t.dtype == torch.float32 and t.is_contiguous() for t in state)
        and not has_hooks(norm)
    )


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
