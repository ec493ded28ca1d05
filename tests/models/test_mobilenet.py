"""MobileNetV2 against torchvision's with the strides for small images."""

import pytest
import torch
import torchvision
from torch import nn

from fedaux_pl.models import create_model

SETTING = [
    [1, 16, 1, 1],
    [6, 24, 2, 1],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]


def reference() -> nn.Module:
    torch.manual_seed(3)
    model = torchvision.models.MobileNetV2(
        num_classes=10, inverted_residual_setting=SETTING, dropout=0.0
    )
    model.features[0][0].stride = (1, 1)
    return model


@pytest.mark.parametrize("train", [False, True])
def test_equals_torchvision_at_full_width(train):
    theirs = reference().train(train)
    ours = create_model("mobilenetv2", 10, width=1.0, mean=0, std=1).train(train)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            # else the activations shrink to nothing in eval mode, where anything would agree
            module.running_var.fill_(0.05)
    state = {
        key.replace("features.", "blocks.").replace("classifier.1.", "head."): value
        for key, value in theirs.state_dict().items()
    }
    ours.load_state_dict(state)
    x = torch.randn(4, 3, 16, 16)

    with torch.no_grad():
        expected = theirs(x)
        assert expected.std() > 1e-3
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)


def test_half_width_channels():
    model = create_model("mobilenetv2", 10)
    outputs = [block.out_channels for block in model.blocks]
    assert outputs == [16, 8, *[16] * 2, *[16] * 3, *[32] * 4, *[48] * 3, *[80] * 3, 160, 640]
    strides = [m.stride[0] for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert strides.count(2) == 3
    assert strides[0] == 1


def test_initialization_is_torchvisions():
    torch.manual_seed(0)
    ours = create_model("mobilenetv2", 10, width=1.0)
    theirs = dict(reference().features.named_parameters())
    for key, a in ours.blocks.named_parameters():
        b = theirs.pop(key)
        if a.ndim == 4:
            assert a.std().item() == pytest.approx(b.std().item(), rel=10 / a.numel() ** 0.5), key
        else:
            assert torch.equal(a, b), key
    assert not theirs
    assert ours.head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert torch.equal(ours.head.bias, torch.zeros(10))
