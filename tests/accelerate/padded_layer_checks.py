"""Layers with padded, shuffled channels, in Triton's interpreter."""

import copy

import pytest
import torch
from torch import nn

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.context import launch, using
from fedaux_pl.accelerate.convolution import pointwise_products, tiling
from fedaux_pl.accelerate.convolution.batch_norm import Activation, batch_norm_act
from fedaux_pl.accelerate.convolution.depthwise import convolve_depthwise
from fedaux_pl.accelerate.convolution.pointwise_products import (
    MatrixLayout,
    convolve_pointwise,
    write_matrices,
)
from fedaux_pl.models.shufflenet import channel_shuffle
from tests.accelerate.convolution_helpers import create_norm, use_small_tiles


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    use_small_tiles(monkeypatch, tile_size=512)
    torch.manual_seed(0)


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1024])
def test_padding_of_a_norm_layer_is_zero(groups, rows, monkeypatch):
    """Also without eps; the other channels are those of a shuffle."""
    monkeypatch.setattr(tiling, "SINGLE_KERNEL_ROWS", rows)
    norm, x = create_norm(10), torch.randn(3, 16, 2, 5)
    x[:, 10:] = 0.0
    x, twin = x.requires_grad_(), copy.deepcopy(norm)
    norm.eps, twin.eps = 0.0, 1e-12  # PyTorch refuses 0
    dy = torch.randn(3, 16, 2, 5)
    y = batch_norm_act(norm, x, None, Activation(), shuffled_groups=groups)
    y.backward(dy)
    assert not y[:, 10:].any()
    assert not x.grad[:, 10:].any()
    z = x.detach()[:, :10].clone().requires_grad_()
    # a shuffle with 10 / groups groups is the inverse of one with ``groups``
    expected = channel_shuffle(twin(channel_shuffle(z, 10 // groups)), groups).relu()
    expected.backward(dy[:, :10])
    torch.testing.assert_close(y[:, :10], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad[:, :10], z.grad, rtol=1e-4, atol=1e-4)
    for one, other in zip(norm.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(norm.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_padding_of_a_depthwise_layer_is_zero(stride):
    conv = nn.Conv2d(10, 10, 3, stride, 1, groups=10, bias=False)
    x = torch.randn(2, 16, 3, 5).requires_grad_()
    y, _ = convolve_depthwise(conv, x)
    y.sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    assert not y[:, 10:].any()
    assert not x.grad[:, 10:].any()
    expected = conv(x[:, :10])
    torch.testing.assert_close(y[:, :10], expected)
    expected.sum().backward()
    torch.testing.assert_close(found, conv.weight.grad)


@pytest.mark.parametrize(("groups", "shuffled_groups"), [(1, 1), (1, 3), (3, 3), (2, 6), (3, 1)])
def test_padding_of_a_matrix_product_is_zero(groups, shuffled_groups):
    conv = nn.Conv2d(12, 18, 1, groups=groups, bias=False)
    x = torch.randn(2, 16, 3, 5).requires_grad_()
    y, _ = convolve_pointwise(conv, x, MatrixLayout(24, 16, groups, shuffled_groups))
    y.square().sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    assert not y[:, 18:].any()
    assert not x.grad[:, 12:].any()
    expected = channel_shuffle(conv(x[:, :12]), shuffled_groups)
    torch.testing.assert_close(y[:, :18], expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    torch.testing.assert_close(found, conv.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_of_many_layers_are_those_of_single_ones(dtype, monkeypatch):
    """The same bits, with several blocks each; other layouts and dtypes have their own kernel."""
    monkeypatch.setattr(pointwise_products, "BLOCK", 64)
    layers = [
        (nn.Conv2d(12, 18, 1, groups=3, bias=False), MatrixLayout(24, 16, 3, 3)),
        (nn.Conv2d(6, 10, 1, bias=False), MatrixLayout(16, 6, 1, 5)),
        (nn.Conv2d(8, 8, 1, groups=2, bias=False), MatrixLayout(8, 8, 2)),
    ]
    inputs = [torch.randn(2, layout.columns, 3, 3).to(dtype) for _, layout in layers]
    launched = []
    monkeypatch.setattr(
        pointwise_products,
        "launch",
        lambda name, *args, **size: launched.append(name) or launch(name, *args, **size),
    )

    def run():
        return [
            convolve_pointwise(conv, x, layout)[0]
            for (conv, layout), x in zip(layers, inputs, strict=True)
        ]

    expected = run()
    assert launched == ["block_diagonal_kernel"] * 3
    with using(weights=write_matrices(layers, dtype)):
        assert all(map(torch.equal, run(), expected))
        assert launched[3:] == ["block_diagonals_kernel"]
        convolve_pointwise(layers[2][0], inputs[2], MatrixLayout(16, 8, 2))
        convolve_pointwise(*layers[2][:1], inputs[2].half(), layers[2][1])
    assert launched[4:] == ["block_diagonal_kernel"] * 2
