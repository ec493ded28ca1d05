"""1x1 convolutions with BatchNorm's moments on a GPU, for all layers of our networks.

``pointwise_checks.py`` runs the same kernel in Triton's interpreter.
"""

import copy
from contextlib import nullcontext
from itertools import cycle, product

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate.convolution import pointwise_products
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.pointwise_products import (
    MAX_IN_CHANNELS,
    multiply_with_moments,
)
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from tests.accelerate.convolution_helpers import create_norm, pointwise_shapes

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(
    ("layer", "case"),
    zip(
        [shape for shape in pointwise_shapes() if shape[0] <= MAX_IN_CHANNELS],
        cycle(product([33, 128], [torch.bfloat16, torch.float16])),
    ),
)
def test_cuda_products_and_their_moments(layer, case):
    """Against float64, and the same bits every time."""
    (in_channels, channels, size), (n, dtype) = layer, case
    torch.manual_seed(0)
    rows = torch.randn(n * size**2, in_channels, device="cuda").to(dtype)
    weight = (torch.randn(channels, in_channels, device="cuda") / in_channels**0.5).to(dtype)
    out, moments = multiply_with_moments(rows, weight)
    expected = rows.double() @ weight.double().t()
    rounding = torch.finfo(dtype).eps
    assert (out - expected).norm() < rounding * expected.norm()
    assert ((out - expected).abs() <= rounding * expected.abs() + 1e-4).all()
    parts = out.double().split(moments.chunk_rows)
    means = torch.stack([part.mean(0) for part in parts])
    squares = torch.stack([(part - part.mean(0)).square().sum(0) for part in parts])
    torch.testing.assert_close(moments.partials[0].double(), means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments.partials[1].double(), squares, rtol=1e-4, atol=1e-4)
    again = multiply_with_moments(rows, weight)
    assert torch.equal(again[0], out)
    assert torch.equal(again[1].partials, moments.partials)


@pytest.mark.parametrize(
    ("layer", "on_side"), [((16, 96), False), ((96, 24), True), ((80, 480), True)]
)
def test_cuda_layers(layer, on_side, monkeypatch):
    """A training step against the modules in float64."""
    in_channels, channels = layer
    torch.manual_seed(0)
    conv = nn.Conv2d(in_channels, channels, 1, bias=False).cuda()
    norm = create_norm(channels).cuda()
    model = nn.Sequential(conv, norm).to(memory_format=torch.channels_last)
    exact = copy.deepcopy(model).double()
    x = torch.randn(64, in_channels, 8, 8, device="cuda").bfloat16().requires_grad_()
    y = x.detach().double().requires_grad_()
    dy = torch.randn(64, channels, 8, 8, device="cuda").bfloat16()
    called = []
    monkeypatch.setattr(
        pointwise_products,
        "multiply_with_moments",
        lambda *args: called.append(args) or multiply_with_moments(*args),
    )
    with (
        torch.autocast("cuda", torch.bfloat16),
        weight_gradients_on(torch.cuda.Stream()) if on_side else nullcontext(),
    ):
        found = conv_norm_act(conv, norm, x, activation=LINEAR)
        found.backward(dy)
        join_weight_gradients()
    assert len(called) == 1
    expected = exact(y)
    expected.backward(dy.double())
    assert conv.weight.grad.stride() == conv.weight.stride()
    ours, theirs = (
        [out, inputs.grad, *(p.grad for p in layers.parameters()), *layers.buffers()]
        for out, inputs, layers in ((found, x, model), (expected, y, exact))
    )
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other.double()).norm() < 2e-2 * other.double().norm()
