"""1x1 convolutions with BatchNorm's moments, in Triton's interpreter, against PyTorch."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution import pointwise_moments, pointwise_products, tiling
from fedaux_pl.accelerate.convolution.conv_norm_act import cast_weights, conv_norm_act
from fedaux_pl.accelerate.convolution.pointwise_moments import (
    gives_moments,
    multiply_with_moments,
)
from fedaux_pl.accelerate.convolution.pointwise_products import convolve_pointwise
from fedaux_pl.accelerate.convolution.tiling import sharing_device
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.models.shufflenet import ShuffleUnit
from tests.accelerate.convolution_helpers import (
    create_norm,
    create_stream,
    fuse_on_cpu,
    randomize_norms,
    use_small_tiles,
)

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """BatchNorm in two kernels; blocks of 16 channels, and 4 programs."""
    fuse_on_cpu(monkeypatch)
    use_small_tiles(monkeypatch)
    monkeypatch.setattr(tiling, "SINGLE_KERNEL_ROWS", 0)
    monkeypatch.setattr(pointwise_moments, "BLOCK_CHANNELS", 16)
    monkeypatch.setattr(pointwise_moments, "FEW_BLOCK_CHANNELS", 16)
    torch.manual_seed(0)


def assert_near(found, expected, tolerance):
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < tolerance, f"off by {error}"


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize(
    ("pixels", "in_channels", "channels"),
    # a part of a tile; several chunks with a rest; chunks of several tiles, channels with a rest
    [(5, 8, 8), (150, 24, 16), (350, 40, 24), (650, 104, 40)],
)
def test_products_and_their_moments(pixels, in_channels, channels, offset):
    """Of the rounded output, also where the mean is large."""
    rows = (torch.randn(pixels, in_channels) + offset).to(HALF)
    weight = (torch.rand(channels, in_channels) / in_channels).to(HALF)
    out, moments = multiply_with_moments(rows, weight)
    assert_near(out, rows.double() @ weight.double().t(), 2**-7)  # the interpreter truncates
    parts = out.double().split(moments.chunk_rows)
    means = torch.stack([part.mean(0) for part in parts])
    squares = torch.stack([(part - part.mean(0)).square().sum(0) for part in parts])
    assert moments.partials.shape == (2, *means.shape)
    torch.testing.assert_close(moments.partials[0].double(), means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moments.partials[1].double(), squares, rtol=1e-3, atol=1e-5)


def test_a_shared_device_has_its_own_number_of_programs():
    rows, weight = torch.randn(600, 8).to(HALF), torch.randn(8, 8).to(HALF)
    assert multiply_with_moments(rows, weight)[1].partials.shape[1] == 4
    with sharing_device():
        assert multiply_with_moments(rows, weight)[1].partials.shape[1] == 10


def step(layers, x, residual, compute):
    """Output, gradients and running statistics of a training step."""
    x, residual = (t.clone().requires_grad_() for t in (x, residual))
    y = compute(*layers, x, residual)
    dy = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    y.backward(dy.to(y.dtype))
    conv, norm = layers
    late = conv.weight.grad is None
    join_weight_gradients()
    assert conv.weight.grad.stride() == conv.weight.stride()  # as fused optimizers need
    gradients = [p.grad for p in (x, residual, conv.weight, norm.weight, norm.bias)]
    return [y.detach(), *gradients, norm.running_mean, norm.running_var], late


def compute_exactly(conv, norm, x, residual):
    return (norm(conv(x)) + residual).relu()


@pytest.mark.parametrize(("is_cast", "on_side"), [(False, False), (True, True)])
def test_layers(is_cast, on_side, monkeypatch):
    conv, norm = nn.Conv2d(24, 40, 1, bias=False), create_norm(40)
    x, residual = torch.randn(5, 24, 7, 9).to(HALF), torch.randn(5, 40, 7, 9).to(HALF)
    if on_side:  # other layouts
        conv.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    exact = copy.deepcopy(conv).double(), copy.deepcopy(norm).double()
    convolved, stream = [], create_stream(monkeypatch)
    monkeypatch.setattr(
        fused,
        "convolve_pointwise",
        lambda *args, cast: convolved.append(cast) or convolve_pointwise(*args, cast=cast),
    )
    monkeypatch.setattr("fedaux_pl.accelerate.kernels.moments_kernel", None)
    model = nn.Sequential(conv, norm)
    with (
        torch.autocast("cpu", HALF),
        weight_gradients_on(stream) if on_side else nullcontext(),
        using(weights=cast_weights(model, x)) if is_cast else nullcontext(),
    ):
        found, late = step((conv, norm), x, residual, conv_norm_act)
    assert late == on_side
    assert len(convolved) == 1
    assert (convolved[0] is not None) == is_cast

    expected, _ = step(exact, x.double(), residual.double(), compute_exactly)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert_near(one, other, 2e-2)
    assert found[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("groups", [1, 2])
def test_weights_in_another_order(groups):
    """Kernels read weights row by row; a transposed one is left to the convolution."""
    conv, norm = nn.Conv2d(24, 40, 1, groups=groups, bias=False), create_norm(40)
    conv.weight.data = conv.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
    x, residual = torch.randn(5, 24, 7, 9).to(HALF), torch.randn(5, 40, 7, 9).to(HALF)
    exact = copy.deepcopy(conv).double(), copy.deepcopy(norm).double()
    with torch.autocast("cpu", HALF):
        found, _ = step((conv, norm), x, residual, conv_norm_act)
    expected, _ = step(exact, x.double(), residual.double(), compute_exactly)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, 3e-2)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("in_channels", [8, 136])
def test_an_infinite_input_makes_all_outputs_nan(in_channels):
    """As in PyTorch, also where BatchNorm's kernels compute the moments (136 input channels)."""
    conv, norm = nn.Conv2d(in_channels, 8, 1, bias=False), create_norm(8)
    x = torch.randn(2, in_channels, 5, 5).to(HALF)
    x[1, 3, 4, 4] = torch.inf
    with torch.autocast("cpu", HALF):
        assert conv_norm_act(conv, norm, x).isnan().all()
    assert norm.running_var.isnan().all()


@pytest.mark.parametrize("sizes", [(40, 40, 1, 2, 2), (16, 48, 2, 2, 1)])
def test_units_of_shufflenet(sizes, monkeypatch):
    """Both products of a unit; depthwise layers compute their own moments, too."""
    unit = speed_up(randomize_norms(ShuffleUnit(*sizes, nn.BatchNorm2d)))
    exact = copy.deepcopy(unit).double()
    products = []
    monkeypatch.setattr(
        pointwise_products,
        "multiply_with_moments",
        lambda *args: products.append(args) or multiply_with_moments(*args),
    )
    monkeypatch.setattr("fedaux_pl.accelerate.kernels.moments_kernel", None)
    x = torch.randn(6, sizes[0], 6, 6).to(HALF)
    with torch.autocast("cpu", HALF):
        found = unit(x)
    assert len(products) == 2
    with using(plain=True):
        expected = exact(x.double())
    assert_near(found, expected, 2**-5)
    for one, other in zip(unit.buffers(), exact.buffers(), strict=True):
        assert_near(one, other, 2**-6)
    found.float().square().sum().backward()
    expected.square().sum().backward()
    gradients = [torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (unit, exact)]
    assert_near(*gradients, 2**-5)


def test_other_products_compute_moments_as_before(monkeypatch):
    assert gives_moments(32, 16, 24, HALF)
    assert not gives_moments(32, 16, 24, torch.float32)
    assert not gives_moments(32, 16, 20, HALF)
    assert not gives_moments(32, 12, 24, HALF)
    assert not gives_moments(32, 136, 24, HALF)
    with torch.no_grad():
        assert not gives_moments(32, 16, 24, HALF)
    monkeypatch.setattr(tiling, "SINGLE_KERNEL_ROWS", 32)
    assert not gives_moments(32, 16, 24, HALF)
