"""Fast versions of the networks for images and of the blocks they are made of.

Every call chooses by its input and its modules: the plain version runs on the CPU, under
torch.compile, in unsupported dtypes, and if a module that a fused layer would skip has hooks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU6, branch
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.depthwise import average_pool
from fedaux_pl.accelerate.convolution.image_stem import standardize
from fedaux_pl.accelerate.convolution.pointwise_products import write_matrices
from fedaux_pl.accelerate.convolution.shuffle_unit import (
    fits_padding,
    fits_three_kernels,
    padded_products,
    shuffle_unit_eval,
    shuffle_unit_train,
)
from fedaux_pl.accelerate.eligibility import ALIGNMENT, HALF, compute_dtype, fusable, has_hooks
from fedaux_pl.accelerate.versions import fast_version
from fedaux_pl.models.image_classifier import InputNormalization
from fedaux_pl.models.resnet import ResNet8
from fedaux_pl.models.shufflenet import ShuffleNet, ShuffleUnit, channel_shuffle


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
        if not _can_fuse(x, self.relu) or not (shortcut is None or _is_pair(shortcut)):
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
        if fits_three_kernels(self, x):
            return shuffle_unit_eval(self, x)
        if fits_padding(self, x):
            return shuffle_unit_train(self, x)
        x, shortcut_input = branch(x)
        out = _shuffle(conv_norm_act(self.reduce, self.norm1, x), self.groups)
        out = conv_norm_act(self.depthwise, self.norm2, out, activation=LINEAR)
        if self.downsample:
            pooled = F.relu(average_pool(shortcut_input))
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


def _is_pair(shortcut: nn.Module) -> bool:
    """Whether a shortcut is a sequence of two layers, such as a convolution and a norm layer."""
    return type(shortcut) is nn.Sequential and len(shortcut) == 2 and not has_hooks(shortcut)


def _shuffle(x: Tensor, groups: int) -> Tensor:
    """Compute ``channel_shuffle``, but keep the layout of channels-last maps."""
    if not x.is_contiguous(memory_format=torch.channels_last):
        return channel_shuffle(x, groups)
    n, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).view(n, height, width, groups, channels // groups)
    return rows.transpose(3, 4).flatten(3).permute(0, 3, 1, 2)
