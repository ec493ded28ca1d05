"""Evaluation with BatchNorm in the weight of the convolution before it."""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.models.batch_norm import channels_last, on_device_of
from fedaux_pl.models.stem import ALIGNMENT, convolve_images, is_stem, pad_channels

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]


def convolve_folded(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    shortcut: Layers | None = None,
) -> Tensor:
    """relu(norm(conv(x)) + residual) in one kernel, two with a shortcut.

    It is cuDNN's, or for images our own.

    Args:
        conv: The convolution.
        norm: Its norm layer.
        x: Activations.
        residual: What is added.
        shortcut: Layers that the residual goes through first. Their weight takes a second kernel,
            their bias is added with the other one.
    """
    if shortcut is not None and residual is not None:
        weight, bias = fold(conv, norm, x.dtype, torch.float32)
        side, own = fold(*shortcut, x.dtype, torch.float32)
        residual = channels_last(pad_channels(residual))
        residual = _convolve(residual, side, shortcut[0])
        bias = (bias + own).to(x.dtype)
    else:
        weight, bias = fold(conv, norm, x.dtype)
    x = channels_last(pad_channels(x))
    if residual is None and is_stem(conv) and x.numel():
        return convolve_images(x, weight, bias, relu=True)
    options = (*_geometry(conv), 1)
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *options)
    return torch.cudnn_convolution_add_relu(x, weight, channels_last(residual), 1.0, bias, *options)


def _convolve(x: Tensor, weight: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution without bias, whose kernels cuDNN tries: its guess may be ten times slower.

    It does not where results are to repeat, since the fastest of one run is not that of the next.
    """
    if not x.is_cuda:
        return torch.conv2d(x, weight, None, *_geometry(conv))
    exact = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    stride, padding, dilation = _geometry(conv)
    return torch.cudnn_convolution(x, weight, padding, stride, dilation, 1, not exact, exact, True)


def _geometry(conv: nn.Conv2d) -> tuple[Any, Any, Any]:
    return conv.stride, conv.padding, conv.dilation


def fold(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    dtype: torch.dtype,
    bias_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that does what it and BatchNorm in evaluation do.

    It is computed anew for every batch, because nothing says whether the weights have changed:
    a captured training step leaves no trace on them.

    Args:
        conv: The convolution, without a bias of its own.
        norm: The norm layer.
        dtype: Of the weight.
        bias_dtype: Of the bias, by default the same.

    Returns:
        The weight, channels last and with input channels of zeros up to a multiple of eight, and
        the bias.
    """
    from fedaux_pl.models import kernels

    weight = conv.weight
    channels, in_channels, height, width = weight.shape
    if weight.stride(2) != width * weight.stride(3):
        weight = weight.contiguous()
    padded = in_channels + -in_channels % ALIGNMENT
    folded = weight.new_empty(channels, height, width, padded, dtype=dtype)
    bias = weight.new_empty(channels, dtype=bias_dtype or dtype)
    with on_device_of(weight):
        kernels.fold_kernel[(channels,)](
            weight,
            folded,
            bias,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            height * width * padded,
            in_channels,
            weight.stride(0),
            weight.stride(1),
            weight.stride(3),
            padded,
            norm.eps,
            BLOCK=1024,
        )
    return folded.permute(0, 3, 1, 2), bias
