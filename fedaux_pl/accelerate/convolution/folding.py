"""Evaluation with BatchNorm folded into the weight and bias of the convolution before it.

cuDNN has kernels with residual and ReLU. 1x1 convolutions with ReLU6 or without activation, which
would take a second pass over their output, have a Triton kernel.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import MIN_BLOCK, launch, next_power_of_two
from fedaux_pl.accelerate.convolution.batch_norm import RELU, Activation, channels_last
from fedaux_pl.accelerate.convolution.image_stem import pad_channels
from fedaux_pl.accelerate.eligibility import ALIGNMENT, HALF, fits_input, is_pointwise

# The fastest of ten tiles on an H200: for few input channels, whose products are one step, or more.
FEW_CHANNELS = 32
FEW = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}
MORE = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}
STAGES = 3
WARPS = 4

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]
"""A convolution without bias and its norm layer."""


def convolve_folded(
    layers: Layers, x: Tensor, residual: Tensor | None, shortcut: Layers | None = None
) -> Tensor:
    """Compute relu(norm(conv(x)) + residual) in evaluation mode, in one of cuDNN's kernels.

    The residual passes through the layers of the shortcut first, in another kernel.
    """
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
    return folded.permute(0, 3, 1, 2), bias


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
    pixels, channels = n * height * width, len(weight)
    if out is None:
        out = x.new_empty(n, height, width, channels).permute(0, 3, 1, 2)
    tile = dict(FEW if in_channels <= FEW_CHANNELS else MORE)
    tile["BLOCK_N"] = min(tile["BLOCK_N"], next_power_of_two(channels, MIN_BLOCK))
    programs = -(-channels // tile["BLOCK_N"]) * -(-pixels // tile["BLOCK_M"])
    launch("pointwise_kernel", (programs,),
        x, x if residual is None else channels_last(residual), out, weight, bias,
        pixels, activation.upper,
        IN=in_channels, OUT=channels, PITCH=out.stride(3), LD=weight.stride(0),
        ACT=activation.kind, HAS_RESIDUAL=residual is not None,
        STAGES=STAGES, num_warps=WARPS, **tile,
    )  # fmt: skip
    return out
