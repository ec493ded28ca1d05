"""1x1 convolutions as matrix products, in training and evaluation, in Triton's interpreter."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution import pointwise_products
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU, Activation
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act, fits_pointwise
from fedaux_pl.accelerate.convolution.pointwise_products import (
    MatrixLayout,
    convolve_pointwise,
    fits_product,
    gives_moments,
    multiply_with_moments,
    write_matrices,
)
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.models.shufflenet import channel_shuffle
from tests.accelerate.convolution_helpers import (
    activate,
    create_norm,
    create_stream,
    fold_in_pytorch,
    fuse_on_cpu,
    use_small_tiles,
)
from tests.accelerate.pairwise import pairwise

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Blocks of 16 channels, and 4 programs."""
    fuse_on_cpu(monkeypatch)
    use_small_tiles(monkeypatch)
    monkeypatch.setattr(pointwise_products, "BLOCK_CHANNELS", 16)
    monkeypatch.setattr(pointwise_products, "FEW_BLOCK_CHANNELS", 16)
    for tile in ("FEW", "MORE"):
        monkeypatch.setattr(fused, tile, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16})
    torch.manual_seed(0)


def assert_near(found, expected, tolerance):
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < tolerance, f"off by {error}"


@pytest.mark.parametrize(
    ("channels", "activation", "with_residual"),
    pairwise([(48, 32), (50, 36)], [RELU, Activation(2, 1.0), LINEAR], [False, True]),
)
def test_evaluation(channels, activation, with_residual, monkeypatch):
    """Several blocks of pixels, of output channels and of input channels."""
    fold_in_pytorch(monkeypatch)
    conv = nn.Conv2d(*channels, 1, bias=False)
    norm = create_norm(channels[1]).eval()
    x = torch.randn(3, channels[0], 2, 5).to(HALF)
    residual = torch.randn(3, channels[1], 2, 5).to(HALF) if with_residual else None
    assert fits_pointwise(conv, x, residual, HALF)
    if activation != RELU or channels[1] % 8:  # not cuDNN's
        monkeypatch.setattr(nn.Conv2d, "forward", None)  # calling it would fail
    with torch.no_grad(), torch.autocast("cpu", HALF):
        found = conv_norm_act(conv, norm, x, residual, activation=activation)
    monkeypatch.undo()
    with torch.no_grad():
        expected = norm.double()(conv.double()(x.double()))
        expected = activate(expected if residual is None else expected + residual, activation)
    assert found.dtype == HALF
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_near(found, expected, 2**-6)


def test_other_convolutions_are_left_to_pytorch():
    x, residual = torch.zeros(2, 8, 3, 3), torch.zeros(2, 16, 3, 3)
    conv = nn.Conv2d(8, 16, 1, bias=False)
    assert fits_pointwise(conv, x, residual, HALF)
    assert not fits_pointwise(conv, x, residual, torch.float32)
    assert not fits_pointwise(conv, x, residual[:1], HALF)
    for fits in (lambda *given: fits_pointwise(*given[:2], None, *given[2:]), fits_product):
        assert fits(conv, x, HALF)
        assert not fits(conv, x, torch.float32)
        assert not fits(conv, x[:0], HALF)
        assert not fits(conv, x[:, :4], HALF)
        for other in (
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.Conv2d(8, 16, 1),
            nn.Conv2d(8, 16, 1, stride=2, bias=False),
            nn.Conv2d(8, 16, 1, padding=1, bias=False),
            nn.Conv2d(8, 16, 1, groups=8, bias=False),  # factors
            nn.Conv2d(8, 16, 1, bias=False).double(),
            nn.Identity(),
        ):
            assert not fits(other, x, HALF)
    grouped = nn.Conv2d(8, 16, 1, groups=2, bias=False)
    assert fits_product(grouped, x, HALF)
    assert not fits_pointwise(grouped, x, None, HALF)


def test_dense_products_need_aligned_channels():
    x = torch.zeros(2, 12, 4, 4)
    assert not fits_product(nn.Conv2d(12, 8, 1, bias=False), x, HALF)
    assert fits_product(nn.Conv2d(12, 8, 1, groups=2, bias=False), x, HALF)
    assert fits_product(nn.Conv2d(8, 9, 1, bias=False), x[:, :8], HALF)


@pytest.mark.parametrize(
    ("pixels", "in_channels", "channels", "offset"),
    # whole tiles; several chunks of several tiles with a rest, channels with a rest
    [(128, 16, 16, 0.0), (350, 40, 24, 100.0)],
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
    assert_close(moments.partials[0].double(), means, rtol=1e-6, atol=1e-6)
    assert_close(moments.partials[1].double(), squares, rtol=1e-3, atol=1e-5)


def test_other_products_compute_moments_as_before():
    assert gives_moments(MatrixLayout(24, 16), HALF)
    assert not gives_moments(MatrixLayout(24, 16), torch.float32)
    assert not gives_moments(MatrixLayout(20, 16), HALF)
    assert not gives_moments(MatrixLayout(24, 12), HALF)
    assert not gives_moments(MatrixLayout(24, 136), HALF)
    with torch.no_grad():
        assert not gives_moments(MatrixLayout(24, 16), HALF)


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


@pytest.mark.parametrize(
    ("groups", "layout", "on_side"),
    [
        (1, "contiguous", False),
        (1, "channels last", True),
        (2, "contiguous", True),
        (2, "channels last", False),
        (2, "transposed", True),  # kernels read weights row by row: left to the convolution
    ],
)
def test_training(groups, layout, on_side, monkeypatch):
    conv, norm = nn.Conv2d(24, 40, 1, groups=groups, bias=False), create_norm(40)
    x, residual = torch.randn(4, 24, 3, 5).to(HALF), torch.randn(4, 40, 3, 5).to(HALF)
    if layout == "channels last":
        conv.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        conv.weight.data = conv.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
    else:
        monkeypatch.setattr("fedaux_pl.accelerate.kernels.moments_kernel", None)
    exact = copy.deepcopy(conv).double(), copy.deepcopy(norm).double()
    stream = create_stream(monkeypatch)
    with torch.autocast("cpu", HALF), weight_gradients_on(stream) if on_side else nullcontext():
        found, late = step((conv, norm), x, residual, partial(conv_norm_act, activation=LINEAR))
    assert late == (on_side and layout != "transposed")
    assert found[0].is_contiguous(memory_format=torch.channels_last)

    def compute_exactly(conv, norm, x, residual):
        return norm(conv(x)) + residual

    expected, _ = step(exact, x.double(), residual.double(), compute_exactly)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert_near(one, other, 2e-2)


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


@pytest.mark.parametrize(("groups", "shuffled_groups"), [(1, 1), (1, 3), (3, 3), (3, 1)])
def test_padding_of_a_matrix_product_is_zero(groups, shuffled_groups):
    conv = nn.Conv2d(12, 18, 1, groups=groups, bias=False)
    x = torch.randn(2, 16, 3, 5).requires_grad_()
    y, _ = convolve_pointwise(conv, x, MatrixLayout(24, 16, groups, shuffled_groups))
    y.square().sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    assert not y[:, 18:].any()
    assert not x.grad[:, 12:].any()
    expected = channel_shuffle(conv(x[:, :12]), shuffled_groups)
    assert_close(y[:, :18], expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    assert_close(found, conv.weight.grad, rtol=1e-4, atol=1e-4)


def test_matrices_of_many_layers_are_those_of_single_ones(monkeypatch):
    """Other layouts and dtypes than those that were written have their own matrix."""
    layers = [
        (nn.Conv2d(12, 18, 1, groups=3, bias=False), MatrixLayout(24, 16, 3, 3)),
        (nn.Conv2d(6, 10, 1, bias=False), MatrixLayout(16, 6, 1, 5)),
        (nn.Conv2d(8, 8, 1, groups=2, bias=False), MatrixLayout(8, 8, 2)),
    ]
    inputs = [torch.randn(2, layout.columns, 3, 3).to(HALF) for _, layout in layers]
    written, matrix_of = [], pointwise_products.matrix_of
    monkeypatch.setattr(
        pointwise_products, "matrix_of", lambda *args: written.append(args) or matrix_of(*args)
    )

    def run():
        return [
            convolve_pointwise(conv, x, layout)[0]
            for (conv, layout), x in zip(layers, inputs, strict=True)
        ]

    expected = run()
    assert len(written) == 3
    with using(matrices=write_matrices(layers, HALF)):
        assert all(map(torch.equal, run(), expected))
        assert len(written) == 3
        convolve_pointwise(layers[2][0], inputs[2], MatrixLayout(16, 8, 2))
        convolve_pointwise(layers[2][0], inputs[2].half(), layers[2][1])
    assert len(written) == 5
