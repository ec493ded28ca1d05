"""ShuffleNet (version 1) for small images.

Zhang, Zhou, Lin and Sun, "ShuffleNet: An Extremely Efficient Convolutional Neural Network for
Mobile Devices", CVPR 2018. For images of about 32x32, the stem has stride 1 and no max-pooling
follows it, which leaves three of the five halvings.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedaux_pl.models.base import DEFAULT_MEAN, DEFAULT_STD, FeatureClassifier
from fedaux_pl.models.batch_norm import twice
from fedaux_pl.models.fused import conv_norm_act
from fedaux_pl.models.layers import Norm, init_convolutions, norm_factory, scale_channels
from fedaux_pl.models.registry import register

_STEM_CHANNELS = 24
_UNITS = (4, 8, 4)
# channels of the first stage by number of groups (table 1 of the paper); later stages double them
_FIRST_STAGE_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Deal the channels of each group out over all groups.

    Args:
        x: Feature maps of shape (N, C, H, W), with C divisible by ``groups``.
        groups: Number of groups that the channels are in, one after the other.

    Returns:
        Feature maps with the first channel of every group, then the second of every group, ...
    """
    n, channels, height, width = x.shape
    if x.is_cuda and x.is_contiguous(memory_format=torch.channels_last):
        # shuffled as they lie in memory, where the way below would change their layout
        rows = x.permute(0, 2, 3, 1).view(n, height, width, groups, channels // groups)
        return rows.transpose(3, 4).flatten(3).permute(0, 3, 1, 2)
    grouped = x.view(n, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).flatten(1, 2)


class ShuffleUnit(nn.Module):
    """Grouped 1x1, shuffle, depthwise 3x3 and grouped 1x1, beside a shortcut.

    With stride 1 the shortcut is added. With stride 2 it is average-pooled and concatenated, so
    that the convolutions make only the channels that the input does not have.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output; as many with stride 1, more with stride 2.
        stride: 1 or 2.
        groups: Groups of the second 1x1 convolution and of the shuffle.
        first_groups: Groups of the first 1x1 convolution.
        norm_layer: Constructor of a norm layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        groups: int,
        first_groups: int,
        norm_layer: Callable[[int], nn.Module],
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
        """Map feature maps to feature maps, of half the size with stride 2."""
        x, again = twice(x)
        out = channel_shuffle(conv_norm_act(self.reduce, self.norm1, x), self.groups)
        # the paper has no activation after the depthwise convolution
        out = conv_norm_act(self.depthwise, self.norm2, out, relu=False)
        if self.downsample:
            pooled = F.relu(F.avg_pool2d(again, 3, stride=2, padding=1))
            return torch.cat([pooled, conv_norm_act(self.expand, self.norm3, out)], dim=1)
        return conv_norm_act(self.expand, self.norm3, out, again)


@register("shufflenet")
class ShuffleNet(FeatureClassifier):
    """ShuffleNet with 2 groups: stages of 200, 400 and 800 channels and 800 features.

    Args:
        num_classes: Number of outputs, at least 1.
        in_channels: Number of channels of the images.
        width: Multiplier on all channel counts. Those of the first stage are rounded to multiples
            of four times ``groups``, because units have a quarter of the channels inside.
        groups: 1, 2, 3, 4 or 8; the paper has more channels for more groups.
        norm: ``"batch"`` or ``"group"``, see :func:`fedaux_pl.models.layers.norm_factory`.
        mean: See :class:`fedaux_pl.models.base.InputNormalization`.
        std: See :class:`fedaux_pl.models.base.InputNormalization`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        groups: int = 2,
        norm: Norm = "batch",
        mean: float | Sequence[float] = DEFAULT_MEAN,
        std: float | Sequence[float] = DEFAULT_STD,
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
        units: list[nn.Module] = []
        for out_channels, count in zip(stage_channels, _UNITS, strict=True):
            for i in range(count):
                # the paper leaves the first one ungrouped because its input is narrow
                first_groups = groups if units else 1
                stride = 2 if i == 0 else 1
                units.append(
                    ShuffleUnit(channels, out_channels, stride, groups, first_groups, norm_layer)
                )
                channels = out_channels
        self.units = nn.Sequential(*units)
        # fan_in, because PyTorch's fan_out does not divide by the groups of a convolution
        init_convolutions(self, "fan_in")

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardised images to the output of the last stage, an eighth of their size."""
        maps: Tensor = self.units(conv_norm_act(self.stem, self.stem_norm, x))
        return maps
