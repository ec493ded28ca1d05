import math

import pytest
import torch
from torch import nn

from fedaux_pl.models import create_model
from fedaux_pl.models.shufflenet import ShuffleUnit, channel_shuffle


@pytest.mark.parametrize(("channels", "groups"), [(6, 2), (6, 3), (12, 4), (5, 1), (8, 8)])
def test_channel_shuffle_against_a_loop(channels, groups):
    x = torch.randn(2, channels, 3, 4)
    expected = torch.empty_like(x)
    per_group = channels // groups
    for group in range(groups):
        for i in range(per_group):
            expected[:, i * groups + group] = x[:, group * per_group + i]
    assert torch.equal(channel_shuffle(x, groups), expected)
    channels_last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(channel_shuffle(channels_last, groups), expected)


def naive_conv(x, weight, groups, stride=1):
    """Grouped convolution as separate convolutions of the groups."""
    padding = weight.shape[-1] // 2
    parts = zip(x.chunk(groups, 1), weight.chunk(groups, 0), strict=True)
    return torch.cat([nn.functional.conv2d(a, w, None, stride, padding) for a, w in parts], 1)


@pytest.mark.parametrize(("in_channels", "stride"), [(16, 1), (8, 2)])
def test_unit_follows_the_paper(in_channels, stride):
    unit = ShuffleUnit(in_channels, 16, stride, 2, 2, lambda _: nn.Identity())
    x = torch.randn(2, in_channels, 6, 6)
    with torch.no_grad():
        y = naive_conv(x, unit.reduce.weight, 2).clamp(min=0)
        assert y.shape[1] == 4
        y = y[:, [0, 2, 1, 3]]
        y = naive_conv(y, unit.depthwise.weight, 4, stride)
        y = naive_conv(y, unit.expand.weight, 2)
        if stride == 1:
            expected = (x + y).clamp(min=0)
        else:
            padded = nn.functional.pad(x, (1, 1, 1, 1))
            rows = [
                [padded[:, :, i : i + 3, j : j + 3].mean((2, 3)) for j in (0, 2, 4)]
                for i in (0, 2, 4)
            ]
            pooled = torch.stack([torch.stack(row, -1) for row in rows], -2)
            expected = torch.cat([pooled, y], 1).clamp(min=0)
        torch.testing.assert_close(unit(x), expected)


def test_stages():
    model = create_model("shufflenet", 10)
    assert model.stem.weight.shape == (24, 3, 3, 3)
    assert model.stem.stride == (1, 1)
    assert [u.downsample for u in model.units] == [i in (0, 4, 12) for i in range(16)]
    assert [u.depthwise.out_channels for u in model.units] == [50] * 4 + [100] * 8 + [200] * 4
    assert [u.reduce.groups for u in model.units] == [1] + [2] * 15
    assert {u.expand.groups for u in model.units} == {2}


@pytest.mark.parametrize(("groups", "millions"), [(1, 143), (2, 140), (3, 137), (4, 133), (8, 137)])
def test_multiplications_in_table_1_of_the_paper(groups, millions):
    model = create_model("shufflenet", 1000, groups=groups)
    total = 112 * 112 * 24 * 27  # the paper's stem on 224x224 images, before its max-pooling
    total += model.head.weight.numel()
    size = 56
    for unit in model.units:
        total += size**2 * unit.reduce.weight.numel()
        size = math.ceil(size / unit.depthwise.stride[0])
        total += size**2 * (unit.depthwise.weight.numel() + unit.expand.weight.numel())
    assert size == 7
    assert total / 1e6 == pytest.approx(millions, abs=1.5)


@pytest.mark.parametrize(
    ("groups", "width"), [(1, 0.01), (2, 0.2), (3, 0.37), (4, 0.01), (8, 0.37), (3, 1.5)]
)
def test_any_width_fits_the_groups(groups, width):
    model = create_model("shufflenet", 2, groups=groups, width=width)
    assert model.feature_dim % (16 * groups) == 0
    with torch.no_grad():
        assert model.eval()(torch.rand(1, 3, 8, 8)).shape == (1, 2)


def test_unknown_groups():
    with pytest.raises(ValueError, match=r"groups=5 .*1, 2, 3, 4, 8"):
        create_model("shufflenet", 10, groups=5)


def test_initialization_preserves_the_scale_of_activations():
    torch.manual_seed(0)
    model = create_model("shufflenet", 10, width=0.5)
    for unit in model.units:
        for conv in (unit.reduce, unit.depthwise, unit.expand):
            fan_in = conv.weight[0].numel()
            tolerance = 5 / math.sqrt(2 * conv.weight.numel())
            expected = math.sqrt(2 / fan_in)
            assert conv.weight.std().item() == pytest.approx(expected, rel=tolerance)
