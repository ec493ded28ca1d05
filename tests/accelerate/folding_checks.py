"""Convolutions with BatchNorm folded in, with kernels in Triton's interpreter."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution.batch_norm import RELU, Activation
from fedaux_pl.accelerate.convolution.conv_norm_act import (
    conv_norm_act,
    convolve_folded,
    fold_batch_norm,
)
from fedaux_pl.accelerate.convolution.image_stem import is_stem, pad_channels, standardize
from tests.accelerate.convolution_helpers import activate, create_norm, fuse_on_cpu


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("in_channels", "kernel", "layout"),
    [
        (3, 3, torch.contiguous_format),  # padded to 8 channels
        (144, 3, torch.channels_last),  # more than one block of a program
        (16, 1, torch.channels_last),
    ],
)
def test_folded_convolution(in_channels, kernel, layout):
    conv = nn.Conv2d(in_channels, 8, kernel, 2, 1, bias=False).to(memory_format=layout)
    norm = create_norm(8).eval()
    weight, bias = fold_batch_norm(conv, norm, torch.float32)
    assert weight.shape[1] % 8 == 0
    assert weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, in_channels, 5, 5)
    out = F.conv2d(pad_channels(x), weight, bias, 2, 1)
    torch.testing.assert_close(out, norm(conv(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("in_channels", "dtype"), [(12, torch.float32), (16, torch.bfloat16)])
def test_folded_shortcut(in_channels, dtype):
    """Its bias, which is large here, is added to that of the other convolution."""
    layers = nn.Conv2d(24, 16, 3, padding=1, bias=False), create_norm(16).eval()
    shortcut = nn.Conv2d(in_channels, 16, 1, 2, bias=False), create_norm(16).eval()
    nn.init.normal_(shortcut[1].bias, 10.0)
    x, residual = torch.randn(3, 24, 4, 4), torch.randn(3, in_channels, 8, 8)
    out = convolve_folded(layers, x.to(dtype), residual.to(dtype), shortcut)
    expected = F.relu(layers[1](layers[0](x)) + shortcut[1](shortcut[0](residual)))
    assert out.dtype == dtype
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    ("dtype", "activation"), [(torch.bfloat16, RELU), (torch.float16, Activation(2, 0.5))]
)
def test_folded_stem(dtype, activation, monkeypatch):
    """With ReLU and with an upper bound, such as that of ReLU6."""
    conv, norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), create_norm(16).eval()
    images = torch.randint(0, 256, (3, 3, 4, 6), dtype=torch.uint8)
    x = standardize(images, torch.tensor(0.5), torch.tensor(0.25), dtype)
    assert is_stem(conv)
    expected = activate(norm(conv(x.float())), activation)
    monkeypatch.setattr(nn.BatchNorm2d, "forward", None)  # calling it would fail
    with torch.no_grad(), torch.autocast("cpu", dtype):
        out = conv_norm_act(conv, norm, x, activation=activation)
    assert out.dtype == dtype
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (2e-2 if dtype == torch.bfloat16 else 2e-3)
