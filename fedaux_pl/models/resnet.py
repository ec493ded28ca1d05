"""ResNet-8: a residual network with one basic block per stage, for small images.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. As usual for
32x32 images, the stem is a 3x3 convolution with stride 1 and there is no max-pooling.
"""

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

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


@register("resnet8")
class ResNet8(FeatureClassifier):
    """ResNet with stages of 64, 128, 256 and 512 channels and 512 features.

    Layers have torchvision's names, except for the linear layer, which is ``head`` instead of
    ``fc``. So weights can be exchanged with torchvision's ``ResNet(BasicBlock, [1, 1, 1, 1])``.

    Args:
        width: Multiplier on all channel counts, which are rounded to multiples of 8.
        norm: ``"batch"`` or ``"group"``, see ``fedaux_pl.models.layers.norm_factory``.

    Examples:
        >>> import torch
        >>> model = ResNet8(10, width=0.25)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        norm: Norm = "batch",
        mean: Constants = DEFAULT_MEAN,
        std: Constants = DEFAULT_STD,
    ) -> None:
        channels = [scale_channels(c, width) for c in (64, 128, 256, 512)]
        norm_layer = norm_factory(norm)
        super().__init__(num_classes, channels[-1], in_channels=in_channels, mean=mean, std=std)
        self.conv1 = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        self.bn1 = norm_layer(channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(channels[0], channels[0], 1, norm_layer)
        self.layer2 = _stage(channels[0], channels[1], 2, norm_layer)
        self.layer3 = _stage(channels[1], channels[2], 2, norm_layer)
        self.layer4 = _stage(channels[2], channels[3], 2, norm_layer)
        init_convolutions(self)

    def feature_map(self, x: Tensor) -> Tensor:
        """Map standardized images to the output of the last stage, an eighth of their size."""
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x


def _stage(
    in_channels: int, out_channels: int, stride: int, norm_layer: NormFactory
) -> nn.Sequential:
    shortcut = None
    if stride != 1 or in_channels != out_channels:
        shortcut = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), norm_layer(out_channels)
        )
    block = BasicBlock(in_channels, out_channels, stride, shortcut, norm_layer=norm_layer)
    return nn.Sequential(block)  # for torchvision's names, such as "layer1.0.conv1"
