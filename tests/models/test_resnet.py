"""ResNet-8 against torchvision's ResNet of the same shape."""

import math

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedaux_pl.models import create_model


def reference(num_classes: int) -> ResNet:
    torch.manual_seed(3)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=num_classes)
    model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


@pytest.mark.parametrize("train", [False, True])
def test_equals_torchvision(train):
    theirs = reference(10)
    ours = create_model("resnet8", 10, mean=0, std=1)
    state = {key.replace("fc.", "head."): value for key, value in theirs.state_dict().items()}
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in state.items()
    }
    for key, value in state.items():
        if key.endswith("running_mean"):
            value.uniform_(-0.5, 0.5)  # also theirs, as the state dict shares memory
    ours.load_state_dict(state)
    ours.train(train)
    theirs.train(train)
    x = torch.randn(4, 3, 16, 16)

    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    # in train mode the running statistics have moved equally
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key.replace("fc.", "head.")], value)


def test_size_in_the_paper():
    """19.79 MB: the paper cuts off further digits where rounding would give 19.80."""
    for model in (create_model("resnet8", 100), reference(100)):
        assert 4 * sum(p.numel() for p in model.parameters()) == 19_797_648


def test_initialization_is_torchvisions():
    torch.manual_seed(0)
    model = create_model("resnet8", 10)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            expected = math.sqrt(2 / fan_out)
            tolerance = 5 / math.sqrt(2 * module.weight.numel())
            assert module.weight.std().item() == pytest.approx(expected, rel=tolerance), name
        elif isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
    bound = 1 / math.sqrt(512)
    assert 0.95 * bound < model.head.weight.abs().max() <= bound
