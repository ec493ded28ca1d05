"""ShuffleNet (version 1) for small images.

Zhang, Zhou, Lin and Sun, "ShuffleNet: An Extremely Efficient Convolutional Neural Network for
Mobile Devices", CVPR 2018. For images of about 32x32 pixels, the stem has stride 1 and there is no
max-pooling, so that three of the five layers with stride 2 remain.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.models.image_classifier import (
    DEFAULT_MEAN,
    DEFAULT_STD,
    Constants,
    FeatureClassifier,
)
from fedaux_pl.models.layers import (
    Norm,
    NormFactory,
    init_convolutions,
    norm_factory,
    scale_channels,
)
from fedaux_pl.models.registry import register

_STEM_CHANNELS = 24
_UNITS = (4, 8, 4)
# Channels of the first stage by number of groups (table 1 of the paper); later stages double them.
_FIRST_STAGE_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave groups of adjacent channels: the first of every group, then the second, ..."""
    n, channels, height, width = x.shape
    grouped = x.view(n, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).flatten(1, 2)


class ShuffleUnit(nn.Module):
    """Grouped 1x1 convolution, channel shuffle, depthwise 3x3 and grouped 1x1, with a shortcut.

    With stride 1 the shortcut is added. With stride 2 it is average-pooled and concatenated, and
    the convolutions compute only the remaining ``out_channels - in_channels`` channels. The first
    1x1 convolution has ``first_groups``, the second and the shuffle ``groups``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        groups: int,
        first_groups: int,
        norm_layer: NormFactory,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.downsample = stride == 2
        middle = out_channels // 4
        new_channels = out_channels - in_channels if self.downsample else out_channels
        self.reduce = nn.Conv2d(in_channels, middle, 1, groups=first_groups, bias=False)
        self.norm1 = norm_layer(middle)
        self.depthwise = nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False)
        self.norm2 = norm_layer(middle)
        self.expand = nn.Conv2d(middle, new_channels, 1, groups=groups, bias=False)
        self.norm3 = norm_layer(new_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps of the same size, or half the size with stride 2."""
        out = F.relu(self.norm1(self.reduce(x)), inplace=True)
        out = channel_shuffle(out, self.groups)
        out = self.norm2(self.depthwise(out))  # no activation here in the paper
        out = self.norm3(self.expand(out))
        if self.downsample:
            # Padded before: with padding=1, PyTorch's gradients for channels-last activations are
            # wrong on CUDA (https://github.com/pytorch/pytorch/issues/188344).
            pooled = F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, stride=2)
            return torch.cat([F.relu(pooled), F.relu(out, inplace=True)], dim=1)
        return F.relu(out + x, inplace=True)


@register("shufflenet")
class ShuffleNet(FeatureClassifier):
    """ShuffleNet with 2 groups: stages of 200, 400 and 800 channels and 800 features.

    Args:
        width: Multiplier on all channel counts. Those of the first stage are rounded to multiples
            of ``4 * groups``, because the inner layers of a unit have a quarter of its channels.
        groups: 1, 2, 3, 4 or 8. As in the paper, more groups come with more channels.
        norm: ``"batch"`` or ``"group"``, see ``fedaux_pl.models.layers.norm_factory``.

    Examples:
        >>> ShuffleNet(10, width=0.25, groups=3).feature_dim
        240
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        groups: int = 2,
        norm: Norm = "batch",
        mean: Constants = DEFAULT_MEAN,
        std: Constants = DEFAULT_STD,
    ) -> None:
        if groups not in _FIRST_STAGE_CHANNELS:
            allowed = ", ".join(map(str, _FIRST_STAGE_CHANNELS))
            raise ValueError(f"groups={groups!r} is not in the paper; pass one of {allowed}.")
        first = scale_channels(_FIRST_STAGE_CHANNELS[groups], width, 4 * groups)
        stage_channels = [first * 2**i for i in range(len(_UNITS))]
        norm_layer = norm_factory(norm)
        super().__init__(
            num_classes, stage_channels[-1], in_channels=in_channels, mean=mean, std=std
        )
        channels = scale_channels(_STEM_CHANNELS, width, groups)
        self.stem = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.stem_norm = norm_layer(channels)
        self.relu = nn.ReLU(inplace=True)
        units: list[nn.Module] = []
        for out_channels, count in zip(stage_channels, _UNITS, strict=True):
            for i in range(count):
                # as in the paper, the first unit has no groups because its input has few channels
                first_groups = groups if units else 1
                stride = 2 if i == 0 else 1
                unit = ShuffleUnit(channels, out_channels, stride, groups, first_groups, norm_layer)
                units.append(unit)
                channels = out_channels
        self.units = nn.Sequential(*units)
        # fan_in: PyTorch's fan_out does not take the groups of a convolution into account
        init_convolutions(self, "fan_in")

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to the output of the last stage, an eighth of their size."""
        maps: Tensor = self.units(self.relu(self.stem_norm(self.stem(x))))
        return maps
