"""A convolution with its norm layer, residual and activation in as few kernels as possible.

On CUDA, networks for small images are limited by the operations between their convolutions and by
the number of kernels. Results differ from those of the modules by rounding only, and on the CPU not
at all.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.accelerate.convolution.batch_norm import (
    LINEAR,
    RELU,
    Activation,
    Moments,
    batch_norm_act,
    batch_norm_act_eval,
    channels_last,
)
from fedaux_pl.accelerate.convolution.depthwise import (
    convolve_depthwise,
    depthwise_norm_act_eval,
    is_depthwise,
)
from fedaux_pl.accelerate.convolution.folding import (
    convolve_folded,
    fits_pointwise,
    fold_batch_norm,
    multiply_pixels,
)
from fedaux_pl.accelerate.convolution.image_stem import convolve_images, is_stem, pad_channels
from fedaux_pl.accelerate.convolution.pointwise_products import convolve_pointwise, fits_product
from fedaux_pl.accelerate.convolution.weight_gradients import convolve, side_stream_for
from fedaux_pl.accelerate.eligibility import (
    ALIGNMENT,
    HALF,
    compute_dtype,
    fits_input,
    fusable,
    is_bias_free_conv,
    is_standard_batch_norm,
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


def conv_norm_act(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    shortcut: nn.Sequential | None = None,
    activation: Activation = RELU,
) -> Tensor:
    """Compute act(norm(conv(x)) + residual).

    ``shortcut``, a convolution and its norm layer, is applied to the residual first.
    """
    dtype = compute_dtype(x)
    path = choose_path(conv, norm, x, residual, activation)
    if residual is not None and shortcut is not None:
        layers = shortcut[0], shortcut[1]
        if path == choose_path(*layers, x, residual, activation) == "fold":
            return convolve_folded((conv, norm), x.to(dtype), residual, layers)  # type: ignore[arg-type]
        residual = conv_norm_act(*layers, residual, activation=LINEAR)
        path = choose_path(conv, norm, x, residual, activation)  # its dtype can change the path
    is_half_stem = dtype in HALF and is_stem(conv) and fits_input(conv, x)
    if path in ("fold", "apply") and residual is None and is_half_stem:
        weight, bias = fold_batch_norm(conv, norm, dtype)  # type: ignore[arg-type]
        return convolve_images(channels_last(pad_channels(x.to(dtype))), weight, bias, activation)
    if path == "fold":
        return convolve_folded((conv, norm), x.to(dtype), residual)  # type: ignore[arg-type]
    moments: Moments | None = None
    if path == "plain":
        out: Tensor = conv(x)
    elif path == "apply" and residual is None and is_depthwise(conv) and fits_input(conv, x):
        return depthwise_norm_act_eval(conv, norm, x.to(dtype), activation)  # type: ignore[arg-type]
    elif path == "apply" and fits_pointwise(conv, x, residual, dtype):
        weight, bias = fold_batch_norm(conv, norm, dtype)  # type: ignore[arg-type]
        return multiply_pixels(x.to(dtype), weight, bias, residual, activation)
    else:
        out, moments = _convolve(conv, x, dtype)
    if path != "plain" and isinstance(norm, nn.BatchNorm2d) and _fits_kernel(out, residual, dtype):
        if path == "train":
            return batch_norm_act(norm, out, residual, activation, moments)
        return batch_norm_act_eval(norm, out, residual, activation)
    out = norm(out)
    if residual is not None:
        out = out + residual
    if activation == LINEAR:
        return out
    if activation == RELU:
        return F.relu(out, inplace=True)
    return F.hardtanh(out, 0.0, activation.upper, inplace=True)


def _fits_kernel(out: Tensor, residual: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether the BatchNorm kernels support these activations.

    Activations with one value per channel are left to the module, which raises an error.
    """
    return (
        out.ndim == 4
        and out.dtype == dtype
        and out.numel() > out.shape[1]
        and (residual is None or residual.shape == out.shape)
    )


def _convolve(conv: nn.Module, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Moments | None]:
    """Compute the convolution with the fastest kernel, and its moments if that computes them.

    Tensor cores need channels in multiples of 8: without padding, cuDNN uses a slow kernel for
    images and converts their layout twice. Stems have a Triton kernel, because cuDNN can be slow
    even with padding. 1x1 convolutions are matrix products.
    """
    if is_depthwise(conv) and fits_input(conv, x):
        return convolve_depthwise(conv, x.to(dtype)), None
    if fits_product(conv, x, dtype):
        return convolve_pointwise(conv, x.to(dtype))
    if dtype in HALF and is_bias_free_conv(conv) and fits_input(conv, x):
        stem = is_stem(conv)
        if stem or conv.in_channels % ALIGNMENT or side_stream_for(conv) is not None:
            return convolve(conv, pad_channels(x.to(dtype)), stem=stem), None
    return conv(x), None
