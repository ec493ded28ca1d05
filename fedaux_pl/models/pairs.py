"""Convolutions of pairs of pixels, for layers that are too narrow to keep a large GPU busy.

A 3x3 convolution computes each pixel from three columns. Two neighbouring ones together see four,
so that a 3x4 convolution of stride 2 in the width computes both, with twice the channels. In memory
that is channels-last, the channels of two neighbours are next to each other already: the result is
that of the 3x3 convolution, without a copy.
"""

from typing import Any

from torch import Tensor, nn

from fedaux_pl.models.batch_norm import channels_last
from fedaux_pl.models.stem import ALIGNMENT

# Of 64 channels, cuDNN's tiles are half empty: on an H200, 64 to 64 channels in bfloat16 on 5,000
# maps of 32x32 take 0.758 ms with the ReLU and 0.892 ms with a residual too. As pairs they take
# 0.693 and 0.798 ms, although a quarter of the products are with zeros.
PAIRED_CHANNELS = 64
PAIRED_ROWS = 2**20  # pixels of a batch; smaller ones were not measured
PAIRED_GEOMETRY: tuple[Any, Any, Any] = (1, 2), (1, 1), (1, 1)
"""Stride, padding and dilation of the convolution of pairs."""


def takes_pairs(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether a convolution over all channels of ``x`` is known to be faster by pairs."""
    n, _, height, width = x.shape
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
        and conv.out_channels == PAIRED_CHANNELS
        and conv.in_channels % ALIGNMENT == 0
        and width % 2 == 0
        and n * height * width >= PAIRED_ROWS
    )


def empty_pairs(weight: Tensor) -> Tensor:
    """Room for the weight of pairs, channels last, in which what stays zero is so already.

    Args:
        weight: Weight (C, D, 3, 3).
    """
    channels, in_channels, height, width = weight.shape
    zeros = weight.new_zeros(2 * channels, height, width + 1, in_channels)
    return zeros.permute(0, 3, 1, 2)


def write_pairs(weight: Tensor, paired: Tensor) -> None:
    """Puts the weight (C, D, 3, 3) of single pixels into that of pairs (2C, D, 3, 4).

    The left pixel does not see the last of the four columns, the right one not the first.
    """
    left, right = paired.chunk(2)
    left[..., :-1].copy_(weight)
    right[..., 1:].copy_(weight)


def as_pairs(x: Tensor) -> Tensor:
    """Channels-last activations (N, C, H, W) seen as (N, 2C, H, W / 2)."""
    n, channels, height, width = x.shape
    pairs = x.permute(0, 2, 3, 1).view(n, height, width // 2, 2 * channels)
    return pairs.permute(0, 3, 1, 2)


def from_pairs(x: Tensor) -> Tensor:
    """Activations (N, 2C, H, W / 2) seen as (N, C, H, W)."""
    n, channels, height, width = x.shape
    singles = channels_last(x).permute(0, 2, 3, 1).view(n, height, 2 * width, channels // 2)
    return singles.permute(0, 3, 1, 2)
