"""Convolutions of pairs of pixels are those of single ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.models import folding
from fedaux_pl.models.fused import conv_norm_act
from fedaux_pl.models.pairs import (
    PAIRED_GEOMETRY,
    as_pairs,
    empty_pairs,
    from_pairs,
    takes_pairs,
    write_pairs,
)

LAST = torch.channels_last


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 7, 6), (2, 1, 2), (1, 4, 8)])
@pytest.mark.parametrize(("in_channels", "channels"), [(8, 64), (64, 64), (16, 5)])
def test_pairs_are_two_single_pixels(in_channels, channels, shape, dtype):
    torch.manual_seed(0)
    n, height, width = shape
    x = torch.randn(n, in_channels, height, width, dtype=dtype).to(memory_format=LAST)
    weight = torch.randn(channels, in_channels, 3, 3, dtype=dtype).to(memory_format=LAST)
    bias = torch.randn(channels, dtype=dtype)
    residual = torch.randn(n, channels, height, width, dtype=dtype).to(memory_format=LAST)
    paired = empty_pairs(weight)
    assert paired.is_contiguous(memory_format=LAST)
    for factor in (1, 2):  # also where another one was
        write_pairs(factor * weight, paired)
        out = F.conv2d(x, paired, bias.repeat(2), *PAIRED_GEOMETRY) + as_pairs(residual)
        expected = F.conv2d(x, factor * weight, bias, padding=1) + residual
        precision = 1e-4 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(from_pairs(out), expected, rtol=precision, atol=precision)


@pytest.mark.parametrize("shape", [(3, 64, 5, 6), (2, 8, 1, 2), (1, 8, 4, 4)])
def test_pairs_are_seen_and_not_copied(shape):
    n, channels, height, width = shape
    x = torch.randn(shape).to(memory_format=LAST)
    pairs = as_pairs(x)
    assert pairs.shape == (n, 2 * channels, height, width // 2)
    assert pairs.data_ptr() == x.data_ptr()
    assert pairs.is_contiguous(memory_format=LAST)
    assert torch.equal(pairs[:, :channels], x[..., ::2])
    assert torch.equal(pairs[:, channels:], x[..., 1::2])
    back = from_pairs(pairs)
    assert back.data_ptr() == x.data_ptr()
    assert back.shape == x.shape
    assert back.stride() == x.stride()


def test_convolutions_that_take_pairs():
    def takes(x=(1024, 64, 32, 32), in_channels=64, out_channels=64, kernel=3, **options):
        options = {"padding": 1, "bias": False, **options}
        conv = nn.Conv2d(in_channels, out_channels, kernel, **options)
        return takes_pairs(conv, torch.empty(x, device="meta"))

    assert takes()
    assert takes((1025, 8, 32, 32), in_channels=8)
    assert not takes((1023, 64, 32, 32))
    assert not takes((0, 64, 32, 32))
    assert not takes((2048, 64, 32, 31))
    assert not takes(in_channels=3)
    assert not takes(out_channels=128)
    assert not takes(kernel=1)
    assert not takes(stride=2)
    assert not takes(padding=0)
    assert not takes(dilation=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("shape", [(1024, 32, 32), (1500, 28, 28)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_residual", [False, True])
def test_cuda_pairs_are_the_convolution(with_residual, dtype, shape, monkeypatch):
    torch.manual_seed(0)
    back = []
    monkeypatch.setattr(folding, "from_pairs", lambda x: back.append(x) or from_pairs(x))
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
