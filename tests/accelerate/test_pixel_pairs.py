"""A convolution of pairs of pixels equals that of single pixels."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.accelerate.convolution import folding
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.folding import (
    PAIRED_GEOMETRY,
    create_paired_weight,
    is_faster_in_pairs,
    view_as_pairs,
    view_as_pixels,
    write_paired_weight,
)
from tests.accelerate.pairwise import pairwise

LAST = torch.channels_last


@pytest.mark.parametrize(
    ("layer", "shape", "dtype"),
    pairwise([(64, 64), (16, 5)], [(3, 7, 6), (2, 1, 2)], [torch.float32, torch.float64]),
)
def test_pairs_equal_single_pixels(layer, shape, dtype):
    torch.manual_seed(0)
    in_channels, channels = layer
    n, height, width = shape
    x = torch.randn(n, in_channels, height, width, dtype=dtype).to(memory_format=LAST)
    weight = torch.randn(channels, in_channels, 3, 3, dtype=dtype).to(memory_format=LAST)
    bias = torch.randn(channels, dtype=dtype)
    residual = torch.randn(n, channels, height, width, dtype=dtype).to(memory_format=LAST)
    paired = create_paired_weight(weight)
    assert paired.is_contiguous(memory_format=LAST)
    for factor in (1, 2):  # also over an earlier weight
        write_paired_weight(factor * weight, paired)
        out = F.conv2d(x, paired, bias.repeat(2), *PAIRED_GEOMETRY) + view_as_pairs(residual)
        expected = F.conv2d(x, factor * weight, bias, padding=1) + residual
        precision = 1e-4 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(view_as_pixels(out), expected, rtol=precision, atol=precision)


@pytest.mark.parametrize("shape", [(3, 64, 5, 6), (2, 8, 1, 2), (1, 8, 4, 4)])
def test_pairs_are_views(shape):
    n, channels, height, width = shape
    x = torch.randn(shape).to(memory_format=LAST)
    pairs = view_as_pairs(x)
    assert pairs.shape == (n, 2 * channels, height, width // 2)
    assert pairs.data_ptr() == x.data_ptr()
    assert pairs.is_contiguous(memory_format=LAST)
    assert torch.equal(pairs[:, :channels], x[..., ::2])
    assert torch.equal(pairs[:, channels:], x[..., 1::2])
    back = view_as_pixels(pairs)
    assert back.data_ptr() == x.data_ptr()
    assert back.shape == x.shape
    assert back.stride() == x.stride()


def test_which_convolutions_use_pairs():
    def uses_pairs(x=(1024, 64, 32, 32), in_channels=64, out_channels=64, kernel=3, **options):
        options = {"padding": 1, "bias": False, **options}
        conv = nn.Conv2d(in_channels, out_channels, kernel, **options)
        return is_faster_in_pairs(conv, torch.empty(x, device="meta"))

    assert uses_pairs()
    assert uses_pairs((1025, 8, 32, 32), in_channels=8)
    assert not uses_pairs((1023, 64, 32, 32))
    assert not uses_pairs((0, 64, 32, 32))
    assert not uses_pairs((2048, 64, 32, 31))
    assert not uses_pairs(in_channels=3)
    assert not uses_pairs(out_channels=128)
    assert not uses_pairs(kernel=1)
    assert not uses_pairs(stride=2)
    assert not uses_pairs(padding=0)
    assert not uses_pairs(dilation=2)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(1024, 32, 32), (1500, 28, 28)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_residual", [False, True])
def test_cuda_pairs_equal_the_convolution(with_residual, dtype, shape, monkeypatch):
    torch.manual_seed(0)
    back = []
    monkeypatch.setattr(folding, "view_as_pixels", lambda x: back.append(x) or view_as_pixels(x))
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
    norm = nn.BatchNorm2d(64).cuda().eval()
    norm.bias.data.normal_()
    n, height, width = shape
    x, residual = torch.randn(2, n, 64, height, width, device="cuda").to(dtype)
    added = residual if with_residual else None
    with torch.no_grad(), torch.autocast("cuda", dtype):
        out = conv_norm_act(conv, norm, x, added)
        few = conv_norm_act(conv, norm, x[:4], None if added is None else added[:4])
    assert [pairs.shape for pairs in back] == [(n, 128, height, width // 2)]
    assert out.data_ptr() == back[0].data_ptr()
    assert out.is_contiguous(memory_format=LAST)
    with torch.no_grad():
        exact = norm(conv(x.float()))
        exact = F.relu(exact + residual if with_residual else exact)
    assert (out - exact).norm() < 1e-2 * exact.norm()
    torch.testing.assert_close(out[:4], few, rtol=2e-2, atol=2e-2)
