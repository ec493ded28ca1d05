"""Depthwise convolutions on a GPU, for all layers of our networks, and average pooling.

``depthwise_checks.py`` runs the same kernels in Triton's interpreter.
"""

from itertools import cycle, product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.accelerate.convolution.batch_norm import RELU6
from fedaux_pl.accelerate.convolution.depthwise import (
    average_pool,
    convolve_depthwise,
    depthwise_norm_act_eval,
)
from tests.accelerate.convolution_helpers import (
    convolve_plainly,
    create_norm,
    depthwise_gradients,
    depthwise_shapes,
)

pytestmark = pytest.mark.cuda


def create_conv(channels, stride):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    return conv.cuda().to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("layer", "case"),
    zip(depthwise_shapes(), cycle(product([1, 33, 256], [torch.bfloat16, torch.float32]))),
)
def test_cuda_depthwise_layers(layer, case):
    """Against PyTorch in float64, and the same bits every time."""
    (channels, stride, size), (n, dtype) = layer, case
    conv = create_conv(channels, stride)
    x = torch.randn(n, channels, size, size, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(convolve_plainly(conv, x))
    expected = depthwise_gradients(conv, x.double(), dy.double(), convolve_plainly)
    found, again = (depthwise_gradients(conv, x, dy, convolve_depthwise) for _ in range(2))
    tolerance = 4e-3 if dtype == torch.bfloat16 else 2e-6
    for name, one, other, exact in zip(("y", "dx", "dw"), found, again, expected, strict=True):
        error = (one.double() - exact).norm() / exact.norm()
        assert error < tolerance, f"{name} is off by {error}"
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("shape", "stride"), zip([(1, 8, 1, 1), (3, 50, 7, 5), (5, 17, 2, 33)] * 2, cycle([1, 2]))
)
def test_cuda_depthwise_of_odd_sizes(shape, stride):
    conv = create_conv(shape[1], stride)
    x = torch.randn(shape, device="cuda")
    dy = torch.randn_like(convolve_plainly(conv, x))
    found = depthwise_gradients(conv, x, dy, convolve_depthwise)
    for one, other in zip(
        found, depthwise_gradients(conv, x.double(), dy, convolve_plainly), strict=True
    ):
        assert (one.double() - other).norm() < 2e-6 * other.norm().clamp_min(1e-3)


@pytest.mark.parametrize(("channels", "stride", "size"), depthwise_shapes()[::3])
def test_cuda_depthwise_evaluation(channels, stride, size):
    conv, norm = create_conv(channels, stride), create_norm(channels).cuda().eval()
    x = torch.randn(64, channels, size, size, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        found = depthwise_norm_act_eval(conv, norm, x, RELU6)
        expected = norm.double()(convolve_plainly(conv, x.double())).clamp(0, 6)
    assert (found - expected).norm() < 4e-3 * expected.norm()


@pytest.mark.parametrize(("channels", "size"), [(24, 32), (200, 16), (400, 8), (50, 5)])
def test_cuda_average_pool(channels, size):
    x = torch.randn(64, channels, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    # NCHW: for channels-last activations PyTorch's own gradients are wrong, see ShuffleUnit
    exact = x.detach().double().contiguous().requires_grad_()
    found, expected = average_pool(x), F.avg_pool2d(exact, 3, stride=2, padding=1)
    assert (found - expected).norm() < 4e-3 * expected.norm()
    gradient = torch.randn_like(found)
    found.backward(gradient)
    expected.backward(gradient.double())
    assert (x.grad - exact.grad).norm() < 4e-3 * exact.grad.norm()
