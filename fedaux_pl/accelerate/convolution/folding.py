"""Evaluation with BatchNorm folded into the weight and bias of the convolution before it."""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.batch_norm import Activation, channels_last
from fedaux_pl.accelerate.convolution.image_stem import ALIGNMENT, convolve_images, pad_channels
from fedaux_pl.accelerate.convolution.tiling import is_deterministic

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]
"""A convolution without bias and its norm layer."""


def convolve_folded_stem(layers: Layers, x: Tensor, activation: Activation) -> Tensor:
    """Compute act(norm(conv(x))) of a stem in evaluation mode, in one kernel."""
    weight, bias = fold_batch_norm(*layers, x.dtype)
    return convolve_images(channels_last(pad_channels(x)), weight, bias, activation)


def convolve_folded(
    layers: Layers, x: Tensor, residual: Tensor | None, shortcut: Layers | None = None
) -> Tensor:
    """Compute relu(norm(conv(x)) + residual) in evaluation mode, in one of cuDNN's kernels.

    Args:
        layers: The convolution, without groups and bias, and its norm layer.
        x: Activations.
        residual: Added before the ReLU, or the input of the shortcut.
        shortcut: Layers that the residual passes through first, in another kernel.
    """
    if residual is None or shortcut is None:
        weight, bias = fold_batch_norm(*layers, x.dtype)
    else:
        weight, main_bias = fold_batch_norm(*layers, x.dtype, torch.float32)
        shortcut_weight, shortcut_bias = fold_batch_norm(*shortcut, x.dtype, torch.float32)
        bias = torch.add(main_bias, shortcut_bias, out=weight.new_empty(len(weight)))
        residual = channels_last(pad_channels(residual))
        residual = _convolve(residual, shortcut_weight, shortcut[0])
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


def _convolve(x: Tensor, weight: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution without bias, with cuDNN's benchmark mode.

    The kernel of cuDNN's heuristic can be ten times slower. Under deterministic algorithms
    benchmark mode is off, because it can select another kernel in every run.
    """
    if not x.is_cuda:
        return torch.conv2d(x, weight, None, *_geometry(conv))
    deterministic, allow_tf32 = is_deterministic(), True
    stride, padding, dilation = _geometry(conv)
    modes = (not deterministic, deterministic, allow_tf32)
    return torch.cudnn_convolution(x, weight, padding, stride, dilation, 1, *modes)


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
    norm.bias - running_mean * scale.

    Args:
        conv: The convolution, without bias.
        norm: The norm layer, whose running statistics are used.
        dtype: The dtype of the weight.
        bias_dtype: The dtype of the bias; by default that of the weight.

    Returns:
        The weight, channels last, its input channels padded with zeros to a multiple of 8, and the
        bias.
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
