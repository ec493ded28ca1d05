"""1x1 convolutions with norm, residual and activation, in Triton's interpreter."""

import pytest
import torch
from torch import nn

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution import pointwise
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.pointwise import fits_pointwise
from tests.accelerate.convolution_helpers import create_norm, fold_in_pytorch, fuse_on_cpu
from tests.accelerate.pairwise import pairwise


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    fold_in_pytorch(monkeypatch)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("channels", "activation", "with_residual"),
    pairwise([(50, 36), (40, 8)], [(True, None), (True, 1.0), (False, None)], [False, True]),
)
def test_layers(channels, activation, with_residual, monkeypatch):
    """Several blocks of pixels, of output channels and of input channels."""
    relu, upper = activation
    for tile in ("FEW", "MORE"):
        monkeypatch.setattr(pointwise, tile, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16})
    conv = nn.Conv2d(*channels, 1, bias=False)
    norm = create_norm(channels[1]).eval()
    x = torch.randn(3, channels[0], 2, 5).bfloat16()
    residual = torch.randn(3, channels[1], 2, 5).bfloat16() if with_residual else None
    is_folded = relu and upper is None and channels[1] % 8 == 0
    assert fits_pointwise(conv, x, residual, torch.bfloat16)
    if not is_folded:  # cuDNN's
        monkeypatch.setattr(nn.Conv2d, "forward", None)  # calling it would fail
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = conv_norm_act(conv, norm, x, residual, relu=relu, upper=upper)
    monkeypatch.undo()
    with torch.no_grad():
        expected = norm.double()(conv.double()(x.double()))
        expected = expected if residual is None else expected + residual
        expected = expected.clamp(0, upper) if relu else expected
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() < 2**-6 * expected.norm()


def test_other_convolutions_are_left_to_pytorch():
    half = torch.bfloat16
    x, residual = torch.zeros(2, 8, 3, 3), torch.zeros(2, 16, 3, 3)
    conv = nn.Conv2d(8, 16, 1, bias=False)
    assert fits_pointwise(conv, x, residual, half)
    assert not fits_pointwise(conv, x, residual, torch.float32)
    assert not fits_pointwise(conv, x, residual[:1], half)
    assert not fits_pointwise(conv, x[:0], None, half)
    assert not fits_pointwise(conv, x[:, :4], None, half)
    for other in (
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.Conv2d(8, 16, 1),
        nn.Conv2d(8, 16, 1, groups=2, bias=False),
        nn.Conv2d(8, 16, 1, stride=2, bias=False),
        nn.Conv2d(8, 16, 1, bias=False).double(),
        nn.Identity(),
    ):
        assert not fits_pointwise(other, x, None, half)
