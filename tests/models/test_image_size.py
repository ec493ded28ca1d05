"""Images whose feature maps would be halved below a single pixel are too small."""

import pytest
import torch
from torch import nn

from fedaux_pl.models import create_for, create_model
from fedaux_pl.models.image_size import ImageSizeProbe


@pytest.mark.parametrize("name", ["resnet8", "mobilenetv2", "shufflenet"])
def test_three_strides_of_two_need_five_pixels(name):
    model = create_model(name, 10, in_channels=1, width=0.125)
    assert ImageSizeProbe(model).smallest_size(channels=1) == 5


def test_five_strides_of_two_need_seventeen_pixels():
    name = "torchvision/shufflenet_v2_x0_5"
    model = create_for((3, 64, 64), name, 10, pretrained=False)
    probe = ImageSizeProbe(model)
    assert probe.smallest_size(channels=3) == 17
    assert probe.is_too_small((3, 16, 64))
    assert not probe.is_too_small((3, 17, 64))


class Pooling(nn.Module):
    """A network that raises an error for images of fewer than 6 pixels."""

    def __init__(self, stride):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 5), nn.MaxPool2d(2, stride))

    def forward(self, x):
        return self.layers(x / 255)


def test_a_network_that_cannot_read_small_images():
    assert ImageSizeProbe(Pooling(2)).smallest_size(channels=1) == 6
    assert ImageSizeProbe(Pooling(2)).smallest_size(channels=3) is None


def test_the_network_stays_as_it_is():
    model = create_model("resnet8", 10, in_channels=1, width=0.125).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert ImageSizeProbe(model).is_too_small((1, 4, 4))
    assert model.training
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
