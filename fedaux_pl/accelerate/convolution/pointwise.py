"""1x1 convolutions with BatchNorm, residual and any of our activations in one kernel.

For predictions. cuDNN folds the norm of convolutions with a ReLU only; those with ReLU6 or without
activation would take a second pass over their output.
"""

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import launch
from fedaux_pl.accelerate.convolution.batch_norm import RELU, Activation, channels_last
from fedaux_pl.accelerate.convolution.folding import Layers, fold_batch_norm
from fedaux_pl.accelerate.convolution.paths import is_pointwise
from fedaux_pl.accelerate.convolution.tiling import MIN_BLOCK, next_power_of_two
from fedaux_pl.accelerate.eligibility import HALF, fits_input

# Tiles that were fastest on an H200 of ten that were tried: for few input channels, whose products
# are one step, and for more of them.
FEW_CHANNELS = 32
FEW = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}
MORE = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}
STAGES = 3
WARPS = 4


def fits_pointwise(conv: nn.Module, x: Tensor, residual: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether :func:`pointwise_norm_act_eval` can compute a convolution in ``dtype``."""
    return (
        dtype in HALF
        and is_pointwise(conv)
        and conv.groups == 1
        and fits_input(conv, x)
        and (residual is None or residual.shape == (len(x), conv.out_channels, *x.shape[2:]))
    )


def pointwise_norm_act_eval(
    layers: Layers, x: Tensor, residual: Tensor | None, activation: Activation
) -> Tensor:
    """Compute act(norm(conv(x)) + residual) in evaluation mode, without gradients."""
    return multiply_pixels(x, *fold_batch_norm(*layers, x.dtype), residual, activation)


def multiply_pixels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    activation: Activation = RELU,
    out: Tensor | None = None,
) -> Tensor:
    """Compute act(weight @ pixel + bias + residual) of all pixels, without gradients.

    Args:
        x: Activations (N, C, H, W).
        weight: Matrix (outputs, C or more), in the dtype of ``x``; further columns are not read.
        bias: A number for each output.
        residual: Added before the activation; of the dtype of ``x``.
        activation: The activation.
        out: Where the result is written: channels of channels-last activations. By default they are
            allocated.

    Returns:
        Activations (N, outputs, H, W), channels last.
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
        pixels, activation.bound,
        IN=in_channels, OUT=channels, PITCH=out.stride(3), LD=weight.stride(0),
        ACT=activation.kind, HAS_RESIDUAL=residual is not None,
        STAGES=STAGES, num_warps=WARPS, **tile,
    )  # fmt: skip
    return out
