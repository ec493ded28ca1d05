"""Products of pixels with a matrix, whose kernel also computes BatchNorm's moments of the result.

The moments save a kernel and its pass over the result. On an H200 the 1x1 convolutions of
MobileNetV2 and their moments take 235 us for 128 images and 762 us for 1,024 this way, with two
kernels for wide layers, and 337 and 1,133 us by cuDNN with two kernels each; those of ShuffleNet
316 and 1,231 us, and 341 and 1,499 us by cuBLAS.
"""

import torch
from torch import Tensor

from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.batch_norm import VECTOR, Moments
from fedaux_pl.accelerate.convolution.tiling import MIN_BLOCK, choose_tiling, next_power_of_two
from fedaux_pl.accelerate.eligibility import HALF

# For most layers with more input channels, cuBLAS and a second kernel are faster.
MAX_IN_CHANNELS = 128
# Tiles that were fastest on an H200. With few input channels narrower blocks are faster, although
# they read the input more often.
BLOCK_PIXELS = 64
BLOCK_CHANNELS = 64
FEW_CHANNELS = 16
FEW_BLOCK_CHANNELS = 32
STAGES = 4
WARPS = 4


def gives_moments(pixels: int, in_channels: int, out_channels: int, dtype: torch.dtype) -> bool:
    """Whether a product is computed by :func:`multiply_with_moments`, in training."""
    return (
        torch.is_grad_enabled()
        and dtype in HALF
        and in_channels <= MAX_IN_CHANNELS
        and in_channels % VECTOR == 0
        and out_channels % VECTOR == 0
        and not choose_tiling(pixels, out_channels).is_single_kernel
    )


def multiply_with_moments(rows: Tensor, weight: Tensor) -> tuple[Tensor, Moments]:
    """Compute rows @ weight.T and the moments of the result, without gradients.

    Args:
        rows: Matrix (pixels, inputs), contiguous, with at most 128 inputs.
        weight: Matrix (outputs, inputs), contiguous and of the same dtype.
    """
    (pixels, in_channels), channels = rows.shape, len(weight)
    max_block = FEW_BLOCK_CHANNELS if in_channels <= FEW_CHANNELS else BLOCK_CHANNELS
    block_channels = min(max_block, next_power_of_two(channels, MIN_BLOCK))
    channel_blocks = -(-channels // block_channels)
    # as many programs for each BLOCK_CHANNELS channels as BatchNorm's kernels have
    programs = choose_tiling(pixels, channels).parameters.programs
    width = max(BLOCK_CHANNELS, channel_blocks * block_channels)
    tiles = -(-pixels * width // (programs * BLOCK_CHANNELS * BLOCK_PIXELS))
    chunk = tiles * BLOCK_PIXELS
    chunks = -(-pixels // chunk)
    out = rows.new_empty(pixels, channels)
    partials = torch.empty(2, chunks, channels, device=rows.device)
    launch("pointwise_moments_kernel", (channel_blocks, chunks),
        rows, weight, out, partials, pixels, in_channels // VECTOR, channels // VECTOR, chunk,
        UNIT=VECTOR, BLOCK_M=BLOCK_PIXELS, BLOCK_N=block_channels,
        BLOCK_K=next_power_of_two(in_channels, MIN_BLOCK),
        WARPS=WARPS, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out, Moments(partials, chunk)
