"""BatchNorm kernels in Triton's interpreter."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution import tiling
from fedaux_pl.accelerate.convolution.batch_norm import (
    Activation,
    _BatchNormAct,
    batch_norm_act,
    batch_norm_act_eval,
)
from tests.accelerate.convolution_helpers import create_norm, use_small_tiles
from tests.accelerate.pairwise import pairwise

RELU, RELU1, LINEAR = Activation(), Activation(True, 1.0), Activation(False)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    use_small_tiles(monkeypatch)
    torch.manual_seed(0)


def activate(z, activation):
    if not activation.relu:
        return z
    return F.relu(z) if activation.upper is None else F.hardtanh(z, 0.0, activation.upper)


def step(norm, x, residual, dy, activation, single_kernel):
    """Output, gradients and buffers of one training step; by PyTorch for a norm of float64."""
    x = x.clone().requires_grad_()
    residual = None if residual is None else residual.clone().requires_grad_()
    if norm.weight.dtype == torch.float64:
        z = norm(x)
        y = activate(z if residual is None else z + residual, activation)
    else:
        buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        y, _ = _BatchNormAct.apply(
            x, norm.weight, norm.bias, residual, buffers, (0.1, 1e-5), activation, single_kernel
        )
    y.backward(dy)
    found = {"y": y.detach(), "dx": x.grad, "dweight": norm.weight.grad, "dbias": norm.bias.grad}
    if residual is not None:
        found["dresidual"] = residual.grad
    return {**found, **dict(norm.named_buffers())}


def both(x, residual, dy, activation, single_kernel=None):
    """A step by the kernels and one by PyTorch in float64."""
    norm = create_norm(x.shape[1])
    exact = nn.BatchNorm2d(x.shape[1]).double()
    exact.load_state_dict(norm.state_dict())
    doubled = None if residual is None else residual.double()
    expected = step(exact, x.double(), doubled, dy.double(), activation, None)
    return step(norm, x, residual, dy, activation, single_kernel), expected


def assert_close(found, expected, tolerance=3e-6):
    assert found.keys() == expected.keys()
    assert found.pop("num_batches_tracked") == expected.pop("num_batches_tracked") == 1
    for key, value in expected.items():
        error = (found[key].double() - value).abs().max()
        assert error <= tolerance * value.abs().max().clamp_min(1), f"{key} is off by {error}"


@pytest.mark.parametrize(
    ("with_residual", "activation", "single_kernel"),
    pairwise([False, True], [RELU, RELU1, LINEAR], [False, True]),
)
def test_training_step(with_residual, activation, single_kernel):
    """Several programs each way, the last with masked channels and a partial tile of rows."""
    x, residual, dy = torch.randn(3, 5, 40, 1, 7)
    tiles = tiling.choose_tiling(35, 40, single_kernel=single_kernel)
    assert tiles.grid == ((3, 1) if single_kernel else (2, 2))
    assert tiles.chunk_rows > tiles.block_rows > 35 % tiles.block_rows > 0
    found, expected = both(x, residual if with_residual else None, dy, activation, single_kernel)
    assert_close(found, expected)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 1, 1, 1), torch.contiguous_format),
        ((1, 3, 1, 3), torch.channels_last),
        ((3, 8, 5, 5), torch.contiguous_format),
        ((2, 72, 3, 3), torch.channels_last),
    ],
)
def test_shapes_and_layouts(shape, layout):
    x, residual, dy = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(3))
    assert_close(*both(x, residual, dy, RELU), tolerance=1e-5)


def test_partials_of_many_chunks(monkeypatch):
    """More chunks than one iteration merges."""
    use_small_tiles(monkeypatch, tile_size=128, programs=1000)
    x, dy = torch.randn(2, 5, 24, 2, 2)
    tiles = tiling.choose_tiling(20, 24, single_kernel=False)
    assert tiles.chunks > 2 * tiles.block_partials > 2
    assert_close(*both(x, None, dy, RELU, False), tolerance=1e-5)


def test_shared_device(monkeypatch):
    shared = dataclasses.replace(tiling.SHARED_DEVICE, tile_size=256, programs=2)
    monkeypatch.setattr(tiling, "SHARED_DEVICE", shared)
    x, residual, dy = torch.randn(3, 5, 24, 1, 7)
    with tiling.sharing_device():
        assert tiling.choose_tiling(35, 24, single_kernel=False).chunks > 1
        assert_close(*both(x, residual, dy, RELU, False), tolerance=1e-5)


def test_broadcast_gradients():
    """The gradient of a mean over the maps has strides of 0."""
    x = torch.randn(4, 8, 3, 3)
    assert_close(*both(x, None, torch.randn(4, 8, 1, 1).expand(4, 8, 3, 3), RELU))


@pytest.mark.parametrize("single_kernel", [False, True])
def test_large_means_do_not_cancel(single_kernel):
    """In float32, the squares of 3000 leave no digit to a variance of 1."""
    x = torch.randn(4, 8, 6, 6) + 3000
    naive = (x.square().mean((0, 2, 3)) - x.mean((0, 2, 3)).square()).double()
    exact = x.double().var((0, 2, 3), correction=0)
    assert ((naive - exact).abs() > 0.05).any()
    found, expected = both(x, None, torch.randn_like(x), LINEAR, single_kernel)
    for key in ("running_var", "dweight", "dx"):
        torch.testing.assert_close(found[key].double(), expected[key], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found["y"].double(), expected["y"], rtol=0, atol=2e-3)


def test_constant_channels_have_no_variance():
    x = torch.full((4, 8, 3, 3), 0.1)
    norm = create_norm(8)
    before = norm.running_var.clone()
    found = step(norm, x, None, torch.ones_like(x), LINEAR, False)
    assert found["y"].isfinite().all()
    torch.testing.assert_close(norm.running_var, 0.9 * before)


def test_bfloat16():
    x, residual, dy = torch.randn(3, 4, 24, 3, 3).bfloat16()
    found, expected = both(x, residual, dy, RELU, False)
    assert found["y"].dtype == found["dx"].dtype == found["dresidual"].dtype == torch.bfloat16
    assert found["dweight"].dtype == torch.float32
    # sums are float32; the interpreter truncates to bfloat16 where GPUs round
    for key, tolerance in (("dweight", 1e-2), ("running_var", 1e-5), ("y", 2**-7), ("dx", 2**-6)):
        error = (found[key].double() - expected[key]).norm() / expected[key].norm()
        assert error < tolerance, key


def test_nan_and_bounds_as_in_pytorch():
    x = torch.zeros(2, 4, 2, 2)
    x[0] = torch.nan
    assert batch_norm_act_eval(create_norm(4).eval(), x, None, RELU1)[0].isnan().all()
    # the derivative at the bounds is 0
    norm = nn.BatchNorm2d(4)
    x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 4, 1, 1).clone()
    residual = -norm(x).detach()
    found = step(nn.BatchNorm2d(4), x, residual, torch.ones(2, 4, 1, 1), RELU, True)
    assert (found["dresidual"] == (found["y"] > 0)).all()


def test_momentum_zero_changes_only_the_counter():
    norm = create_norm(8)
    norm.momentum = 0.0
    before = {key: value.clone() for key, value in norm.named_buffers()}
    x = torch.randn(3, 8, 3, 3)
    with torch.no_grad():
        y = batch_norm_act(norm, x, None, RELU)
    expected = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, training=True))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(norm.running_mean, before["running_mean"])
    assert torch.equal(norm.running_var, before["running_var"])
    assert norm.num_batches_tracked == 1


def test_autograd_sees_that_running_statistics_changed():
    norm = create_norm(8)
    version = norm.running_mean._version
    batch_norm_act(norm, torch.randn(3, 8, 3, 3), None, RELU)
    assert norm.running_mean._version > version
    with torch.inference_mode():
        batch_norm_act(norm, torch.randn(3, 8, 3, 3), None, RELU)
    assert norm.num_batches_tracked == 2


def test_second_derivatives_are_refused():
    norm = create_norm(8)
    x = torch.randn(3, 8, 3, 3, requires_grad=True)
    y = batch_norm_act(norm, x, None, RELU)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("activation", [RELU, RELU1, LINEAR])
@pytest.mark.parametrize("with_residual", [False, True])
def test_evaluation(with_residual, activation):
    norm = create_norm(40).eval()
    x, residual = torch.randn(2, 5, 40, 1, 7)
    y = batch_norm_act_eval(norm, x, residual if with_residual else None, activation)
    expected = activate(norm(x) + residual if with_residual else norm(x), activation)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
