"""3x3 convolutions computed for pairs of pixels, for layers too narrow to fill cuDNN's tiles.

Two horizontally adjacent output pixels of a 3x3 convolution depend on four input columns. So a 3x4
convolution with horizontal stride 2 and twice the output channels computes both. In channels-last
memory the channels of adjacent pixels are contiguous: its output, reinterpreted as single pixels,
is that of the 3x3 convolution, without a copy.
"""

from typing import Any

from torch import Tensor, nn

from fedaux_pl.accelerate.convolution.batch_norm import channels_last
from fedaux_pl.accelerate.convolution.image_stem import ALIGNMENT

# With 64 output channels, cuDNN's tiles are half empty. On an H200, 64 to 64 channels in bfloat16
# on 5,000 maps of 32x32 take 0.758 ms with ReLU and 0.892 ms with residual and ReLU; in pairs 0.693
# and 0.798 ms, although a quarter of the weight is zeros.
PAIRED_CHANNELS = 64
MIN_PAIRED_PIXELS = 2**20  # of a batch; smaller ones were not measured
PAIRED_GEOMETRY: tuple[Any, Any, Any] = (1, 2), (1, 1), (1, 1)
"""Stride, padding and dilation of the convolution of pairs."""


def is_faster_in_pairs(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether an ungrouped convolution of ``x`` was measured to be faster for pairs of pixels."""
    n, _, height, width = x.shape
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
        and conv.out_channels == PAIRED_CHANNELS
        and conv.in_channels % ALIGNMENT == 0
        and width % 2 == 0
        and n * height * width >= MIN_PAIRED_PIXELS
    )


def create_paired_weight(weight: Tensor) -> Tensor:
    """Allocate the weight (2C, D, 3, 4) of the convolution of pairs, channels last, all zeros.

    Args:
        weight: The weight (C, D, 3, 3) for single pixels.
    """
    channels, in_channels, height, width = weight.shape
    zeros = weight.new_zeros(2 * channels, height, width + 1, in_channels)
    return zeros.permute(0, 3, 1, 2)


def write_paired_weight(weight: Tensor, paired: Tensor) -> None:
    """Copy the weight (C, D, 3, 3) for single pixels into that for pairs (2C, D, 3, 4).

    The first C output channels, the left pixel, do not use the last of the four columns; the other
    C, the right pixel, do not use the first. These entries stay zero.
    """
    left, right = paired.chunk(2)
    left[..., :-1].copy_(weight)
    right[..., 1:].copy_(weight)


def view_as_pairs(x: Tensor) -> Tensor:
    """View channels-last activations (N, C, H, W) as (N, 2C, H, W / 2)."""
    n, channels, height, width = x.shape
    pairs = x.permute(0, 2, 3, 1).view(n, height, width // 2, 2 * channels)
    return pairs.permute(0, 3, 1, 2)


def view_as_pixels(x: Tensor) -> Tensor:
    """View activations (N, 2C, H, W / 2) as (N, C, H, W)."""
    n, channels, height, width = x.shape
    pixels = channels_last(x).permute(0, 2, 3, 1).view(n, height, 2 * width, channels // 2)
    return pixels.permute(0, 3, 1, 2)
