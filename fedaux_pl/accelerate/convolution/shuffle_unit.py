"""A unit of ShuffleNet: in three kernels for predictions, and without a copy in training.

The inner layers have 50, 100 or 200 channels, in groups of 25, 50 or 100: numbers for which tensor
cores and vector loads have no fast path. So grouped convolutions are products with matrices that
have zeros outside of the groups, the inner channels are padded to a multiple of 8, and the shuffle
is the order of the first matrix's rows. In predictions, cuDNN's kernel is the fastest for the first
product and ours for the last one, which also writes beside the pooled input.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.accelerate.convolution.batch_norm import (
    LINEAR,
    RELU,
    batch_norm_act,
    branch,
    channels_last,
)
from fedaux_pl.accelerate.convolution.depthwise import (
    average_pool,
    average_pool_relu_eval,
    convolve_depthwise,
    depthwise_norm_act_eval,
    is_depthwise,
)
from fedaux_pl.accelerate.convolution.folding import convolve_act, fold_batch_norm, multiply_pixels
from fedaux_pl.accelerate.convolution.pointwise_products import (
    MatrixLayout,
    Product,
    convolve_pointwise,
    matrix_of,
)
from fedaux_pl.accelerate.eligibility import (
    ALIGNMENT,
    HALF,
    compute_dtype,
    fits_input,
    fusable,
    is_pointwise,
    is_standard_batch_norm,
)
from fedaux_pl.models.shufflenet import ShuffleUnit

POINTWISE = (1, 1), (0, 0), (1, 1)  # stride, padding and dilation


def fits_padding(unit: ShuffleUnit, x: Tensor) -> bool:
    """Whether ``shuffle_unit_train`` can compute a unit.

    Units whose norm layers get one value per channel are left to the modules, which raise an error.
    """
    stride = unit.depthwise.stride[0]
    return (
        _has_standard_layers(unit, x, training=True)
        and x.dtype == compute_dtype(x)
        and x[:, 0, ::stride, ::stride].numel() > 1
    )


def shuffle_unit_train(unit: ShuffleUnit, x: Tensor) -> Tensor:
    """Compute a unit in training mode, with gradients."""
    x, shortcut_input = branch(x)
    norm1, norm2, norm3 = cast(tuple[nn.BatchNorm2d, ...], (unit.norm1, unit.norm2, unit.norm3))
    (_, reduce), (_, expand) = _products(unit)
    inner, moments = convolve_pointwise(unit.reduce, x, reduce)
    inner = batch_norm_act(norm1, inner, None, RELU, moments, shuffled_groups=unit.groups)
    inner = convolve_depthwise(unit.depthwise, inner)
    inner = batch_norm_act(norm2, inner, None, LINEAR, shuffled_groups=1)
    out, moments = convolve_pointwise(unit.expand, inner, expand)
    if not unit.downsample:
        return batch_norm_act(norm3, out, shortcut_input, RELU, moments)
    pooled = F.relu(average_pool(shortcut_input))
    return torch.cat([pooled, batch_norm_act(norm3, out, None, RELU, moments)], dim=1)


def padded_products(units: Iterable[nn.Module], x: Tensor) -> list[Product]:
    """The matrices of all units that ``shuffle_unit_train`` may compute."""
    if not fusable(x) or compute_dtype(x) not in HALF:
        return []
    return [
        product
        for unit in units
        if isinstance(unit, ShuffleUnit) and unit.training
        if is_pointwise(unit.reduce) and is_pointwise(unit.expand)
        for product in _products(unit)
    ]


def _products(unit: ShuffleUnit) -> tuple[Product, Product]:
    """The first and the last convolution, and the layouts of their matrices."""
    reduce, expand = unit.reduce, unit.expand
    padded = reduce.out_channels + -reduce.out_channels % ALIGNMENT
    return (
        (reduce, MatrixLayout(padded, reduce.in_channels, reduce.groups, unit.groups)),
        (expand, MatrixLayout(expand.out_channels, padded, expand.groups)),
    )


def _has_standard_layers(unit: ShuffleUnit, x: Tensor, *, training: bool) -> bool:
    """Whether our kernels support all layers of a unit, with BatchNorm in the given mode."""
    norms = unit.norm1, unit.norm2, unit.norm3
    return (
        fusable(x)
        and compute_dtype(x) in HALF
        and fits_input(unit.reduce, x)
        and all(is_standard_batch_norm(norm) and norm.training == training for norm in norms)
        and is_pointwise(unit.reduce)
        and is_depthwise(unit.depthwise)
        and is_pointwise(unit.expand)
    )


def fits_three_kernels(unit: ShuffleUnit, x: Tensor) -> bool:
    """Whether ``shuffle_unit_eval`` can compute a unit."""
    return (
        not torch.is_grad_enabled()
        and _has_standard_layers(unit, x, training=False)
        and x.shape[1] % ALIGNMENT == 0
        and torch.backends.cudnn.enabled
    )


def shuffle_unit_eval(unit: ShuffleUnit, x: Tensor) -> Tensor:
    """Compute a unit in evaluation mode, without gradients."""
    x = channels_last(x.to(compute_dtype(x)))
    norm1, norm2, norm3 = cast(tuple[nn.BatchNorm2d, ...], (unit.norm1, unit.norm2, unit.norm3))
    (_, reduce), (_, expand) = _products(unit)
    matrix, bias = _fold(unit.reduce, norm1, reduce, x.dtype)
    weight = matrix.view(len(matrix), 1, 1, -1).permute(0, 3, 1, 2)
    inner = convolve_act(x, weight, bias, None, POINTWISE)
    inner = depthwise_norm_act_eval(unit.depthwise, norm2, inner, LINEAR)
    matrix, bias = _fold(unit.expand, norm3, expand, x.dtype)
    if not unit.downsample:
        return multiply_pixels(inner, matrix, bias, x)
    n, _, height, width = inner.shape
    channels = x.shape[1] + len(matrix)
    out = x.new_empty(n, height, width, channels).permute(0, 3, 1, 2)
    average_pool_relu_eval(x, out[:, : x.shape[1]])
    multiply_pixels(inner, matrix, bias, out=out[:, x.shape[1] :])
    return out


def _fold(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, layout: MatrixLayout, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The matrix and the bias of a convolution with BatchNorm folded in."""
    weight, bias = fold_batch_norm(conv, norm, dtype)
    matrix = matrix_of(weight[:, : conv.weight.shape[1]], layout, dtype)
    column = MatrixLayout(layout.rows, 1, shuffled_groups=layout.shuffled_groups)
    return matrix, matrix_of(bias[:, None], column, dtype)[:, 0]
