"""Depthwise convolutions in Triton's interpreter, against PyTorch in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU, RELU6
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.depthwise import (
    average_pool,
    convolve_depthwise,
    depthwise_norm_act_eval,
    is_depthwise,
)
from tests.accelerate.convolution_helpers import (
    activate,
    convolve_plainly,
    create_norm,
    depthwise_gradients,
    fuse_on_cpu,
    use_small_chunks,
)
from tests.accelerate.pairwise import pairwise


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Tiles of 4 columns and 16 channels, and chunks of up to three tiles."""
    use_small_chunks(monkeypatch, block_channels=16)
    torch.manual_seed(0)


def create_conv(channels, stride, layout=torch.channels_last):
    conv = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    return conv.to(memory_format=layout)


def assert_step(conv, x, tolerance):
    dy = torch.randn_like(convolve_plainly(conv, x.detach().double()))
    if x.dtype == torch.bfloat16:
        dy = dy.bfloat16().double()
    expected = depthwise_gradients(conv, x.double(), dy, convolve_plainly)
    found = depthwise_gradients(conv, x, dy, convolve_depthwise)
    assert found[2].stride() == conv.weight.stride()  # as fused optimizers need
    for name, one, other in zip(("y", "dx", "dweight"), found, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < tolerance, f"{name} is off by {error}"
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert found[0].dtype == found[1].dtype == x.dtype


@pytest.mark.parametrize(
    ("shape", "stride", "dtype"),
    [
        ((3, 20, 3, 5), 1, torch.float32),
        ((3, 20, 3, 5), 2, torch.float32),
        ((4, 32, 3, 4), 1, torch.bfloat16),
        ((4, 32, 3, 4), 2, torch.bfloat16),
    ],
)
def test_steps(shape, stride, dtype):
    """Several programs each way; a last tile that is masked both ways, or whole tiles.

    The arithmetic is float32; the interpreter truncates results in half precision.
    """
    conv, x = create_conv(shape[1], stride), torch.randn(shape).to(dtype)
    assert_step(conv, x, 1e-6 if dtype == torch.float32 else 2**-7)
    assert conv.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("stride", [1, 2])
def test_other_layouts(stride):
    """Inputs, gradients and weights that are not channels last; maps of one column."""
    conv = create_conv(12, stride, torch.contiguous_format)
    for x in (torch.randn(2, 16, 4, 1)[:, 2:14], torch.randn(2, 12, 1, 1).expand(2, 12, 3, 3)):
        assert_step(conv, x, 1e-6)
    x = torch.randn(2, 12, 3, 3, requires_grad=True)
    # the gradient of a mean over the maps has strides of 0
    (found,) = torch.autograd.grad(convolve_depthwise(conv, x).mean((2, 3)).square().sum(), x)
    (expected,) = torch.autograd.grad(convolve_plainly(conv, x).mean((2, 3)).square().sum(), x)
    assert_close(found, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_padding_is_zero(stride):
    """Of outputs and gradients, and of evaluation."""
    conv, norm = create_conv(10, stride), create_norm(10).eval()
    x = torch.randn(2, 16, 3, 5).requires_grad_()
    y = convolve_depthwise(conv, x)
    y.sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    expected = conv(x[:, :10])
    expected.sum().backward()
    with torch.no_grad():
        evaluated = depthwise_norm_act_eval(conv, norm, x, LINEAR)
        assert_close(evaluated[:, :10], norm(expected), rtol=1e-5, atol=1e-5)
    assert not any(padded[:, 10:].any() for padded in (y, x.grad, evaluated))
    assert_close(y[:, :10], expected)
    assert_close(found, conv.weight.grad)


@pytest.mark.parametrize("size", [(4, 4), (5, 3)])
def test_average_pool(size):
    x = torch.randn(2, 6, *size).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = x.detach().clone().requires_grad_()
    found, expected = average_pool(x), F.avg_pool2d(y, 3, stride=2, padding=1)
    assert_close(found, expected)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    assert_close(x.grad, y.grad)


def test_without_the_gradient_of_the_input():
    conv, x = create_conv(8, 1), torch.randn(2, 8, 4, 4)
    convolve_depthwise(conv, x).sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    convolve_plainly(conv, x).sum().backward()
    assert_close(found, conv.weight.grad)


@pytest.mark.parametrize(
    ("dtype", "stride", "activation"),
    pairwise([torch.float32, torch.bfloat16], [1, 2], [RELU, RELU6, LINEAR]),
)
def test_evaluation(dtype, stride, activation):
    conv, norm = create_conv(20, stride), create_norm(20).eval()
    x = (3 * torch.randn(3, 20, 3, 4)).to(dtype)
    with torch.no_grad():
        found = depthwise_norm_act_eval(conv, norm, x, activation)
        expected = activate(norm.double()(convolve_plainly(conv, x.double())), activation)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() < (1e-6 if dtype == torch.float32 else 2**-7) * expected.norm()


def test_nan_passes():
    conv, norm = create_conv(8, 1), create_norm(8).eval()
    x = torch.full((1, 8, 3, 3), torch.nan)
    with torch.no_grad():
        assert depthwise_norm_act_eval(conv, norm, x, RELU6).isnan().all()


def test_layers_take_the_kernels(monkeypatch):
    """In training and evaluation, in float32 and half precision; residuals go to BatchNorm."""
    fuse_on_cpu(monkeypatch)
    monkeypatch.setattr(nn.Conv2d, "forward", None)  # calling it would fail
    conv, norm, x = create_conv(8, 1), create_norm(8), torch.randn(2, 8, 4, 4)
    residual = torch.randn(2, 8, 4, 4)
    for train in (True, False):
        for dtype in (torch.float32, torch.bfloat16):
            for added in (None, residual.to(dtype)):
                norm.train(train)
                with (
                    torch.set_grad_enabled(train),
                    torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32),
                ):
                    out = conv_norm_act(conv, norm, x, added, activation=RELU6)
                assert out.dtype == dtype
                statistics = (None, None) if train else (norm.running_mean, norm.running_var)
                expected = F.batch_norm(
                    convolve_plainly(conv, x), *statistics, norm.weight, norm.bias, train
                )
                expected = (expected + (0 if added is None else residual)).clamp(0, 6)
                tolerance = 1e-4 if dtype == torch.float32 else 0.1
                assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


DEPTHWISE = {"out_channels": 8, "kernel_size": 3, "padding": 1, "groups": 8, "bias": False}


def test_other_convolutions_are_left_to_pytorch():
    assert is_depthwise(nn.Conv2d(8, **DEPTHWISE))
    assert not is_depthwise(nn.Identity())
    for options in (
        {"kernel_size": 5, "padding": 2},
        {"stride": 3},
        {"stride": (1, 2)},
        {"padding": 0},
        {"dilation": 2, "padding": 2},
        {"bias": True},
        {"groups": 4},
        {"out_channels": 16},
        {"padding_mode": "circular"},
        {"dtype": torch.float64},
    ):
        assert not is_depthwise(nn.Conv2d(8, **DEPTHWISE | options)), options


@pytest.mark.parametrize("train", [False, True])
def test_other_inputs_are_left_to_pytorch(train, monkeypatch):
    """Which computes empty batches and refuses others."""
    fuse_on_cpu(monkeypatch)
    conv, norm = create_conv(8, 1), create_norm(8).eval()
    norm.training = train
    with torch.set_grad_enabled(train):
        assert conv_norm_act(conv, norm.eval(), torch.zeros(0, 8, 4, 4)).shape == (0, 8, 4, 4)
        with pytest.raises(RuntimeError, match="channels"):
            conv_norm_act(conv, norm, torch.zeros(2, 4, 4, 4))
