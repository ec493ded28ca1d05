"""Fast versions of the networks for images and of the blocks they are made of.

Every call chooses by its input and its modules: the plain version runs on the CPU, under
torch.compile, in unsupported dtypes, and if a module that a fused layer would skip has hooks.

A unit of ShuffleNet runs in three kernels for predictions, and without a copy in training. Its
inner layers have 50, 100 or 200 channels, in groups of 25, 50 or 100: numbers for which tensor
cores and vector loads have no fast path. So grouped convolutions are products with matrices that
have zeros outside of the groups, the inner channels are padded to a multiple of 8, and the shuffle
is the order of the first matrix's rows.
"""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import depthwise
from fedaux_pl.accelerate.convolution.batch_norm import (
    LINEAR,
    RELU,
    RELU6,
    batch_norm_act,
    branch,
    channels_last,
)
from fedaux_pl.accelerate.convolution.conv_norm_act import (
    conv_norm_act,
    convolve_act,
    fold_batch_norm,
    multiply_pixels,
)
from fedaux_pl.accelerate.convolution.image_stem import standardize
from fedaux_pl.accelerate.convolution.pointwise_products import (
    MatrixLayout,
    Product,
    convolve_pointwise,
    matrix_of,
    write_matrices,
)
from fedaux_pl.accelerate.eligibility import (
    ALIGNMENT,
    HALF,
    compute_dtype,
    fits_input,
    fusable,
    has_hooks,
    is_pointwise,
    is_standard_batch_norm,
)
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.models.image_classifier import InputNormalization
from fedaux_pl.models.resnet import ResNet8
from fedaux_pl.models.shufflenet import ShuffleNet, ShuffleUnit, channel_shuffle

POINTWISE = (1, 1), (0, 0), (1, 1)  # stride, padding and dilation


@fast_version(InputNormalization)
class FastInputNormalization(InputNormalization):
    """Standardizes images in one kernel, to the dtype of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Standardize a batch of images of shape (N, in_channels, H, W)."""
        fits_kernel = (
            fusable(x)
            and compute_dtype(x) in HALF
            and torch.is_autocast_enabled(x.device.type)
            and self.mean.dtype == self.std.dtype == torch.float32
            and self.in_channels <= ALIGNMENT
            and x.numel() > 0
            and not x.requires_grad
        )
        if not fits_kernel:
            return super().forward(x)
        self.check_images(x)
        return standardize(x, self.mean, self.std, compute_dtype(x))


@fast_version(BasicBlock)
class FastBasicBlock(BasicBlock):  # type: ignore[misc]
    """The block as two or three fused layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        shortcut = self.downsample
        is_pair = type(shortcut) is nn.Sequential and len(shortcut) == 2 and not has_hooks(shortcut)
        if not _can_fuse(x, self.relu) or not (shortcut is None or is_pair):
            return super().forward(x)  # type: ignore[no-any-return]
        x, shortcut_input = branch(x)
        out = conv_norm_act(self.conv1, self.bn1, x)
        return conv_norm_act(self.conv2, self.bn2, out, shortcut_input, shortcut=shortcut)


@fast_version(ResNet8)
class FastResNet8(ResNet8):
    """ResNet-8 with a fused stem."""

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to the output of the last stage."""
        if not _can_fuse(x, self.relu):
            return super().feature_map(x)
        x = conv_norm_act(self.conv1, self.bn1, x)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x


@fast_version(Conv2dNormActivation)
class FastConv2dNormActivation(Conv2dNormActivation):  # type: ignore[misc]
    """Convolution, norm layer and ReLU6 as one fused layer; other sequences are not fused."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        if len(self) != 3 or not _can_fuse(x, self[2], nn.ReLU6):
            return super().forward(x)  # type: ignore[no-any-return]
        return conv_norm_act(self[0], self[1], x, activation=RELU6)


@fast_version(InvertedResidual)
class FastInvertedResidual(InvertedResidual):  # type: ignore[misc]
    """The block with its last convolution, norm layer and residual as one fused layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        if not fusable(x) or has_hooks(self.conv):
            return super().forward(x)  # type: ignore[no-any-return]
        *hidden, conv, norm = self.conv
        out, shortcut_input = branch(x)
        for layer in hidden:
            out = layer(out)
        residual = shortcut_input if self.use_res_connect else None
        return conv_norm_act(conv, norm, out, residual, activation=LINEAR)


@fast_version(ShuffleUnit)
class FastShuffleUnit(ShuffleUnit):
    """The unit without copies for the shuffle; unusual units and float32 as three fused layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps, of half the size with stride 2."""
        if not fusable(x):
            return super().forward(x)
        compute = choose_unit(self, x)
        if compute is not None:
            return compute(self, x)
        x, shortcut_input = branch(x)
        out = _shuffle(conv_norm_act(self.reduce, self.norm1, x), self.groups)
        out = conv_norm_act(self.depthwise, self.norm2, out, activation=LINEAR)
        if self.downsample:
            pooled = F.relu(depthwise.average_pool(shortcut_input))
            return torch.cat([pooled, conv_norm_act(self.expand, self.norm3, out)], dim=1)
        return conv_norm_act(self.expand, self.norm3, out, shortcut_input)


@fast_version(ShuffleNet)
class FastShuffleNet(ShuffleNet):
    """ShuffleNet with a fused stem; in training the matrices of all units share one buffer."""

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to the output of the last stage."""
        if not _can_fuse(x, self.relu):
            return super().feature_map(x)
        matrices = write_matrices(padded_products(self.units, x), compute_dtype(x))
        with using(matrices=matrices):
            maps: Tensor = self.units(conv_norm_act(self.stem, self.stem_norm, x))
        return maps


def _can_fuse(x: Tensor, activation: nn.Module, kind: type[nn.Module] = nn.ReLU) -> bool:
    """Whether our kernels can run on ``x`` and replace an in-place activation layer."""
    return (
        fusable(x)
        and type(activation) is kind
        and bool(activation.inplace)
        and not has_hooks(activation)
    )


def _shuffle(x: Tensor, groups: int) -> Tensor:
    """Compute ``channel_shuffle``, but keep the layout of channels-last maps."""
    if not x.is_contiguous(memory_format=torch.channels_last):
        return channel_shuffle(x, groups)
    n, channels, height, width = x.shape
    rows = x.movedim(1, 3).view(n, height, width, groups, channels // groups)
    return rows.transpose(3, 4).flatten(3).movedim(3, 1)


def shuffle_unit_train(unit: ShuffleUnit, x: Tensor) -> Tensor:
    """Compute a unit in training mode, with gradients."""
    x, shortcut_input = branch(x)
    norm1, norm2, norm3 = _norms(unit)
    (_, reduce), (_, expand) = _products(unit)
    inner, moments = convolve_pointwise(unit.reduce, x, reduce)
    inner = batch_norm_act(norm1, inner, None, RELU, moments, shuffled_groups=unit.groups)
    inner = depthwise.convolve_depthwise(unit.depthwise, inner)
    inner = batch_norm_act(norm2, inner, None, LINEAR, shuffled_groups=1)
    out, moments = convolve_pointwise(unit.expand, inner, expand)
    if not unit.downsample:
        return batch_norm_act(norm3, out, shortcut_input, RELU, moments)
    pooled = F.relu(depthwise.average_pool(shortcut_input))
    return torch.cat([pooled, batch_norm_act(norm3, out, None, RELU, moments)], dim=1)


def padded_products(units: Iterable[nn.Module], x: Tensor) -> list[Product]:
    """The matrices of all units that ``shuffle_unit_train`` may compute."""
    products: list[Product] = []
    if compute_dtype(x) not in HALF:
        return products
    for unit in units:
        if isinstance(unit, ShuffleUnit) and unit.training and _has_products(unit):
            products += _products(unit)
    return products


def _has_products(unit: ShuffleUnit) -> bool:
    return is_pointwise(unit.reduce) and is_pointwise(unit.expand)


def _norms(unit: ShuffleUnit) -> tuple[nn.BatchNorm2d, ...]:
    return cast(tuple[nn.BatchNorm2d, ...], (unit.norm1, unit.norm2, unit.norm3))


def _products(unit: ShuffleUnit) -> tuple[Product, Product]:
    """The first and the last convolution, and the layouts of their matrices."""
    reduce, expand = unit.reduce, unit.expand
    padded = reduce.out_channels + -reduce.out_channels % ALIGNMENT
    return (
        (reduce, MatrixLayout(padded, reduce.in_channels, reduce.groups, unit.groups)),
        (expand, MatrixLayout(expand.out_channels, padded, expand.groups)),
    )


def choose_unit(unit: ShuffleUnit, x: Tensor) -> Callable[[ShuffleUnit, Tensor], Tensor] | None:
    """Return the function that can compute a unit, if its layers and their inputs are standard."""
    norms = _norms(unit)
    is_standard = (
        compute_dtype(x) in HALF
        and _has_products(unit)
        and depthwise.is_depthwise(unit.depthwise)
        and fits_input(unit.reduce, x)
        and all(is_standard_batch_norm(norm) for norm in norms)
    )
    if not is_standard:
        return None
    if all(norm.training for norm in norms):
        stride = unit.depthwise.stride[0]
        fits = x.dtype == compute_dtype(x) and x[:, 0, ::stride, ::stride].numel() > 1
        return shuffle_unit_train if fits else None
    fits = x.shape[1] % ALIGNMENT == 0 and torch.backends.cudnn.enabled
    is_plain = torch.is_grad_enabled() or any(norm.training for norm in norms)
    return shuffle_unit_eval if fits and not is_plain else None


def shuffle_unit_eval(unit: ShuffleUnit, x: Tensor) -> Tensor:
    """Compute a unit in evaluation mode, without gradients."""
    x = channels_last(x.to(compute_dtype(x)))
    norm1, norm2, norm3 = _norms(unit)
    (_, reduce), (_, expand) = _products(unit)
    matrix, bias = _fold(unit.reduce, norm1, reduce, x.dtype)
    weight = matrix.view(len(matrix), 1, 1, -1).movedim(3, 1)
    inner = convolve_act(x, weight, bias, None, POINTWISE)
    inner = depthwise.depthwise_norm_act_eval(unit.depthwise, norm2, inner, LINEAR)
    matrix, bias = _fold(unit.expand, norm3, expand, x.dtype)
    if not unit.downsample:
        return multiply_pixels(inner, matrix, bias, x)
    n, _, height, width = inner.shape
    channels = x.shape[1] + len(matrix)
    out = x.new_empty(n, height, width, channels).movedim(3, 1)
    depthwise.convolve_depthwise_eval(x, None, 2, activation=RELU, out=out[:, : x.shape[1]])
    multiply_pixels(inner, matrix, bias, out=out[:, x.shape[1] :])
    return out


def _fold(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    layout: MatrixLayout,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The matrix and the bias of a convolution with BatchNorm folded in."""
    weight, bias = fold_batch_norm(conv, norm, dtype)
    matrix = matrix_of(weight[:, : conv.weight.shape[1]], layout, dtype)
    column = MatrixLayout(layout.rows, 1, shuffled_groups=layout.shuffled_groups)
    return matrix, matrix_of(bias[:, None], column, dtype)[:, 0]
