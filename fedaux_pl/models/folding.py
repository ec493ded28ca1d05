"""Evaluation with BatchNorm in the weight of the convolution before it."""

import torch
from torch import Tensor, nn

from fedaux_pl.models.batch_norm import channels_last, on_device_of
from fedaux_pl.models.stem import ALIGNMENT, convolve_images, is_stem, pad_channels


def convolve_folded(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None
) -> Tensor:
    """relu(norm(conv(x)) + residual) in one kernel, cuDNN's or for images our own."""
    weight, bias = fold(conv, norm, x.dtype)
    x = channels_last(pad_channels(x))
    if residual is None and is_stem(conv) and x.numel():
        return convolve_images(x, weight, bias, relu=True)
    options = (conv.stride, conv.padding, conv.dilation, 1)
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *options)  # type: ignore[arg-type]
    return torch.cudnn_convolution_add_relu(
        x,
        weight,
        channels_last(residual),
        1.0,
        bias,
        *options,  # type: ignore[arg-type]
    )


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that does what it and BatchNorm in evaluation do.

    It is computed anew for every batch, because nothing says whether the weights have changed:
    a captured training step leaves no trace on them.

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
    bias = weight.new_empty(channels, dtype=dtype)
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
