"""The stem, the first convolution of a network for small images, and the layout of its input.

Tensor cores need channels-last tensors whose number of channels is a multiple of 8, so images are
padded with channels of zeros.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.accelerate.context import MIN_BLOCK, ceil_div, launch, next_power_of_two
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, Activation, channels_last
from fedaux_pl.accelerate.eligibility import ALIGNMENT, is_bias_free_conv

STEM_TILE = 8192  # pixels times output channels of a tile
STEM_PROGRAMS = 1584  # four waves of three programs on each of an H200's 132 multiprocessors
STEM_STAGES = 1  # 4,096 images take 0.28 ms on an H200; 0.35 ms with two stages, 0.34 with three
MAX_STEM_CHANNELS = 128


def pad_channels(x: Tensor) -> Tensor:
    """Append channels of zeros up to a multiple of 8; results of ``standardize`` have them."""
    n, channels, height, width = x.shape
    missing = -channels % ALIGNMENT
    if not missing:
        return x
    padded = channels + missing
    strides = (height * width * padded, 1, width * padded, padded)
    end = (x.storage_offset() + n * strides[0]) * x.element_size()
    if (
        x.stride() == strides
        and not x.requires_grad
        and x.storage_offset() % padded == 0
        and end <= x.untyped_storage().nbytes()
    ):
        return x.as_strided((n, padded, height, width), strides)
    return F.pad(channels_last(x), (0, 0, 0, 0, 0, missing))


def standardize(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute (x - mean) / std of images in one kernel; bytes are divided by 255 first.

    ``mean`` and ``std`` are one number or C numbers, float32. The result is a slice of a
    channels-last tensor with a multiple of 8 channels, so ``pad_channels`` copies nothing.
    """
    n, channels, height, width = x.shape
    if x.stride(2) != width * x.stride(3):
        x = x.contiguous()
    padded = channels + -channels % ALIGNMENT
    out = torch.empty(n, height, width, padded, dtype=dtype, device=x.device)
    pixels = n * height * width
    block = 256
    launch("standardize_kernel", (ceil_div(pixels, block),),
        x, out, mean, std, pixels, height * width, channels,
        x.stride(0), x.stride(1), x.stride(3), int(mean.numel() > 1), int(std.numel() > 1),
        255.0 if x.dtype == torch.uint8 else 1.0, PADDED=padded, BLOCK=block,
    )  # fmt: skip
    return out.movedim(3, 1)[:, :channels]


def is_stem(conv: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether ``convolve_images`` can compute a convolution."""
    return (
        is_bias_free_conv(conv)
        and conv.in_channels <= ALIGNMENT
        and conv.out_channels % ALIGNMENT == 0
        and conv.out_channels <= MAX_STEM_CHANNELS
        and conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
    )


def convolve_images(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = LINEAR,
) -> Tensor:
    """Compute act(conv(x) + bias) of a stem, without gradients.

    Images (N, 8, H, W), weight (C, 8, 3, 3), of the same dtype, and result are channels last.
    """
    n, _, height, width = x.shape
    channels = len(weight)
    out = x.new_empty(n, height, width, channels)
    pixels = n * height * width
    block_channels = next_power_of_two(channels, MIN_BLOCK)
    block = min(128, STEM_TILE // block_channels)
    chunk = ceil_div(pixels, STEM_PROGRAMS * block) * block
    launch("stem_kernel", (ceil_div(pixels, chunk),),
        x, weight, weight if bias is None else bias, out, pixels, height, width, chunk,
        activation.upper, CHANNELS=channels, ACT=activation.kind, HAS_BIAS=bias is not None,
        BLOCK_M=block, BLOCK_C=block_channels, num_warps=4, num_stages=STEM_STAGES,
    )  # fmt: skip
    return out.movedim(3, 1)


def pad_weight(weight: Tensor, in_channels: int, dtype: torch.dtype) -> Tensor:
    """Convert a weight to channels last and ``dtype``, and pad its input channels with zeros."""
    channels, unpadded, height, width = weight.shape
    if in_channels == unpadded:
        return weight.to(dtype, memory_format=torch.channels_last)
    padded = weight.new_zeros(channels, height, width, in_channels, dtype=dtype)
    padded[..., :unpadded].copy_(weight.movedim(1, 3))
    return padded.movedim(3, 1)
