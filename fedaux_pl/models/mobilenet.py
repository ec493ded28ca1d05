"""MobileNetV2 for small images.

Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018. For images of about 32x32 pixels, the stem and the second stage have stride 1, so that
three of the five layers with stride 2 remain.
"""

from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

from fedaux_pl.models.image_classifier import (
    DEFAULT_MEAN,
    DEFAULT_STD,
    Constants,
    FeatureClassifier,
)
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


@register("mobilenetv2")
class MobileNetV2(FeatureClassifier):
    """MobileNetV2 of half the width, with 640 features.

    Unlike in torchvision, the multiplier also applies to the last convolution, and there is no
    dropout before the linear layer: the outputs are a linear function of the features.

    Args:
        width: Multiplier on all channel counts, which are rounded to multiples of 8. Width 1 is
            the network of Sandler et al. (2018), with 1280 features.
        norm: ``"batch"`` or ``"group"``, see ``fedaux_pl.models.layers.norm_factory``.

    Examples:
        >>> MobileNetV2(10, width=0.25).feature_dim
        320
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: float = 0.5,
        norm: Norm = "batch",
        mean: Constants = DEFAULT_MEAN,
        std: Constants = DEFAULT_STD,
    ) -> None:
        feature_dim = scale_channels(_LAST_CHANNELS, width)
        norm_layer = norm_factory(norm)
        super().__init__(num_classes, feature_dim, in_channels=in_channels, mean=mean, std=std)
        conv_options = {"norm_layer": norm_layer, "activation_layer": nn.ReLU6}
        channels = scale_channels(_STEM_CHANNELS, width)
        blocks: list[nn.Module] = [Conv2dNormActivation(in_channels, channels, 3, **conv_options)]
        for expansion, base_channels, count, first_stride in _STAGES:
            out_channels = scale_channels(base_channels, width)
            for i in range(count):
                stride = first_stride if i == 0 else 1
                blocks += [InvertedResidual(channels, out_channels, stride, expansion, norm_layer)]
                channels = out_channels
        blocks.append(Conv2dNormActivation(channels, feature_dim, 1, **conv_options))
        self.blocks = nn.Sequential(*blocks)
        init_convolutions(self)
        nn.init.normal_(self.head.weight, 0.0, 0.01)
        nn.init.zeros_(self.head.bias)

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to the output of the last block, an eighth of their size."""
        maps: Tensor = self.blocks(x)
        return maps
