"""A convolution with its norm layer, residual and activation in as few kernels as possible.

Results differ from those of the modules by rounding only, and on the CPU not at all. In predictions
BatchNorm is folded into the convolution before it. cuDNN has kernels with residual and ReLU. 1x1
convolutions with ReLU6 or without activation have a Triton kernel.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.accelerate.context import MIN_BLOCK, ceil_div, launch, next_power_of_two
from fedaux_pl.accelerate.convolution import depthwise
from fedaux_pl.accelerate.convolution.batch_norm import (
    LINEAR,
    RELU,
    Activation,
    Moments,
    batch_norm_act,
    batch_norm_act_eval,
    channels_last,
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
    is_pointwise,
    is_standard_batch_norm,
)

Path = Literal["plain", "train", "apply", "fold"]
# The fastest of ten tiles on an H200: for few input channels, whose products are one step, or more.
FEW_CHANNELS = 32
FEW = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}
MORE = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}
STAGES = 3
WARPS = 4

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]  # a convolution without bias and its norm layer


def choose_path(
    conv: nn.Module,
    norm: nn.Module,
    x: Tensor,
    residual: Tensor | None,
    activation: Activation,
) -> Path:
    """Choose how act(norm(conv(x)) + residual) is computed.

    "plain": the modules themselves. "train": BatchNorm with the batch's statistics. "apply": with
    the running statistics, after the convolution. "fold": these folded into the convolution's
    weight, with residual and ReLU in the same cuDNN kernel.
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
    fits_depthwise = depthwise.is_depthwise(conv) and fits_input(conv, x)
    if path == "plain":
        out: Tensor = conv(x)
    elif path == "apply" and residual is None and fits_depthwise:
        return depthwise.depthwise_norm_act_eval(conv, norm, x.to(dtype), activation)  # type: ignore[arg-type]
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
    """Whether the BatchNorm kernels support activations; modules refuse one value per channel."""
    return (
        out.ndim == 4
        and out.dtype == dtype
        and out.numel() > out.shape[1]
        and (residual is None or residual.shape == out.shape)
    )


def _convolve(conv: nn.Module, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Moments | None]:
    """Compute the convolution with the fastest kernel, and its moments if that computes them.

    Without channels in multiples of 8, cuDNN uses a slow kernel and converts the layout twice; for
    stems it can be slow even with padding.
    """
    if depthwise.is_depthwise(conv) and fits_input(conv, x):
        return depthwise.convolve_depthwise(conv, x.to(dtype)), None
    if fits_product(conv, x, dtype):
        return convolve_pointwise(conv, x.to(dtype))
    if dtype in HALF and is_bias_free_conv(conv) and fits_input(conv, x):
        stem = is_stem(conv)
        if stem or conv.in_channels % ALIGNMENT or side_stream_for(conv) is not None:
            return convolve(conv, pad_channels(x.to(dtype)), stem=stem), None
    return conv(x), None


def convolve_folded(
    layers: Layers,
    x: Tensor,
    residual: Tensor | None,
    shortcut: Layers | None = None,
) -> Tensor:
    """Compute relu(norm(conv(x)) + shortcut(residual)) in evaluation mode by cuDNN."""
    if residual is None or shortcut is None:
        weight, bias = fold_batch_norm(*layers, x.dtype)
    else:
        weight, main_bias = fold_batch_norm(*layers, x.dtype, torch.float32)
        shortcut_weight, shortcut_bias = fold_batch_norm(*shortcut, x.dtype, torch.float32)
        bias = torch.add(main_bias, shortcut_bias, out=weight.new_empty(len(weight)))
        residual = channels_last(pad_channels(residual))
        residual = torch.conv2d(residual, shortcut_weight, None, *_geometry(shortcut[0]))
    residual = None if residual is None else channels_last(residual)
    x = channels_last(pad_channels(x))
    return convolve_act(x, weight, bias, residual, _geometry(layers[0]))


def convolve_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    geometry: tuple[Any, Any, Any],
) -> Tensor:
    """Compute relu(conv(x) + bias + residual) of channels-last tensors by cuDNN."""
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *geometry, 1)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *geometry, 1)


def _geometry(conv: nn.Conv2d) -> tuple[Any, Any, Any]:
    return conv.stride, conv.padding, conv.dilation


def fold_batch_norm(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the weight and bias of a convolution with BatchNorm folded in.

    With scale = norm.weight / sqrt(running_var + eps) these are weight * scale and
    norm.bias - running_mean * scale. The weight is channels last, its input channels are padded
    with zeros to a multiple of 8. By default the bias has its dtype.
    """
    weight = conv.weight
    channels, in_channels, height, width = weight.shape
    if weight.stride(2) != width * weight.stride(3):
        weight = weight.contiguous()
    padded = in_channels + -in_channels % ALIGNMENT
    folded = weight.new_empty(channels, height, width, padded, dtype=dtype)
    bias = weight.new_empty(channels, dtype=bias_dtype or dtype)
    launch("fold_kernel", (channels,),
        weight, folded, bias, norm.weight, norm.bias, norm.running_mean, norm.running_var,
        height * width * padded, in_channels,
        weight.stride(0), weight.stride(1), weight.stride(3), padded, norm.eps, BLOCK=1024,
    )  # fmt: skip
    return folded.movedim(3, 1), bias


def fits_pointwise(conv: nn.Module, x: Tensor, residual: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether ``multiply_pixels`` can compute a convolution in ``dtype``."""
    return (
        dtype in HALF
        and is_pointwise(conv)
        and conv.groups == 1
        and fits_input(conv, x)
        and (residual is None or residual.shape == (len(x), conv.out_channels, *x.shape[2:]))
    )


def multiply_pixels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    activation: Activation = RELU,
    out: Tensor | None = None,
) -> Tensor:
    """Compute act(weight @ pixel + bias + residual) of all pixels, without gradients.

    All tensors have the same dtype. The weight is a matrix (outputs, C or more), of which further
    columns are not read. The result is written to ``out``, channels of channels-last activations.
    """
    x = channels_last(x)
    n, in_channels, height, width = x.shape
    pixels = n * height * width
    channels = len(weight)
    if out is None:
        out = x.new_empty(n, height, width, channels).movedim(3, 1)
    tile = dict(FEW if in_channels <= FEW_CHANNELS else MORE)
    tile["BLOCK_N"] = min(tile["BLOCK_N"], next_power_of_two(channels, MIN_BLOCK))
    programs = ceil_div(channels, tile["BLOCK_N"]) * ceil_div(pixels, tile["BLOCK_M"])
    launch("pointwise_kernel", (programs,),
        x, x if residual is None else channels_last(residual), out, weight, bias,
        pixels, activation.upper,
        IN=in_channels, OUT=channels, PITCH=out.stride(3), LD=weight.stride(0),
        ACT=activation.kind, HAS_RESIDUAL=residual is not None,
        STAGES=STAGES, num_warps=WARPS, **tile,
    )  # fmt: skip
    return out
