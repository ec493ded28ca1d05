"""MobileNetV2 for small images.

Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018. For images of about 32x32, the stem and the second stage have stride 1, which leaves
three of the five halvings.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

from fedaux_pl.models.base import DEFAULT_MEAN, DEFAULT_STD, FeatureClassifier
from fedaux_pl.models.batch_norm import twice
from fedaux_pl.models.fused import conv_norm_act
from fedaux_pl.models.layers import Norm, init_convolutions, norm_factory, scale_channels
from fedaux_pl.models.registry import register

_STEM_CHANNELS = 32
_LAST_CHANNELS = 1280
# expansion, channels, blocks, stride of the first block
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class _ConvNormReLU6(Conv2dNormActivation):  # type: ignore[misc]
    """torchvision's sequence of the three, as one step."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        return conv_norm_act(self[0], self[1], x, upper=6.0)


class _Block(InvertedResidual):  # type: ignore[misc]
    """torchvision's block, with its names, as two steps or three."""

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        *hidden, conv, norm = self.conv
        out, again = twice(x)
        for layer in hidden:
            out = conv_norm_act(layer[0], layer[1], out, upper=6.0)
        return conv_norm_act(conv, norm, out, again if self.use_res_connect else None, relu=False)


@register("mobilenetv2")
class MobileNetV2(FeatureClassifier):
    """MobileNetV2 of half the width, with 640 features.

    Unlike torchvision's, the multiplier narrows the last convolution too, and no dropout comes
    before the linear layer, so that the outputs are a linear function of the features.

    Args:
        num_classes: Number of outputs, at least 1.
        in_channels: Number of channels of the images.
        width: Multiplier on all channel counts, which are rounded to multiples of 8; 1 is the
            network of the paper, with 1280 features.
        norm: ``"batch"`` or ``"group"``, see :func:`fedaux_pl.models.layers.norm_factory`.
        mean: See :class:`fedaux_pl.models.base.InputNormalization`.
        std: See :class:`fedaux_pl.models.base.InputNormalization`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: float = 0.5,
        norm: Norm = "batch",
        mean: float | Sequence[float] = DEFAULT_MEAN,
        std: float | Sequence[float] = DEFAULT_STD,
    ) -> None:
        feature_dim = scale_channels(_LAST_CHANNELS, width)
        norm_layer = norm_factory(norm)
        super().__init__(num_classes, feature_dim, in_channels=in_channels, mean=mean, std=std)
        conv_options = {"norm_layer": norm_layer, "activation_layer": nn.ReLU6}
        channels = scale_channels(_STEM_CHANNELS, width)
        blocks: list[nn.Module] = [_ConvNormReLU6(in_channels, channels, 3, **conv_options)]
        for expansion, base_channels, count, first_stride in _STAGES:
            out_channels = scale_channels(base_channels, width)
            for i in range(count):
                stride = first_stride if i == 0 else 1
                blocks.append(_Block(channels, out_channels, stride, expansion, norm_layer))
                channels = out_channels
        blocks.append(_ConvNormReLU6(channels, feature_dim, 1, **conv_options))
        self.blocks = nn.Sequential(*blocks)
        init_convolutions(self)
        nn.init.normal_(self.head.weight, 0.0, 0.01)
        nn.init.zeros_(self.head.bias)

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardised images to the output of the last block, an eighth of their size."""
        maps: Tensor = self.blocks(x)
        return maps
