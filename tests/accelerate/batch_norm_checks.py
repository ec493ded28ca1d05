"""BatchNorm kernels in Triton's interpreter, and the gradients of two branches."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.batch_norm import (
    LINEAR,
    RELU,
    Activation,
    _BatchNormAct,
    batch_norm_act,
    batch_norm_act_eval,
    branch,
    choose_tiling,
)
from fedaux_pl.models.shufflenet import channel_shuffle
from tests.accelerate.convolution_helpers import activate, create_norm, use_small_tiles

RELU1 = Activation(2, 1.0)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    use_small_tiles(monkeypatch)
    torch.manual_seed(0)


def step(norm, x, residual, dy, activation):
    """Output, gradients and buffers of one training step; by PyTorch for a norm of float64."""
    x = x.clone().requires_grad_()
    residual = None if residual is None else residual.clone().requires_grad_()
    if norm.weight.dtype == torch.float64:
        z = norm(x)
        y = activate(z if residual is None else z + residual, activation)
    else:
        y = batch_norm_act(norm, x, residual, activation)
    y.backward(dy)
    found = {"y": y.detach(), "dx": x.grad, "dweight": norm.weight.grad, "dbias": norm.bias.grad}
    if residual is not None:
        found["dresidual"] = residual.grad
    return {**found, **dict(norm.named_buffers())}


def both(x, residual, dy, activation):
    """A step by the kernels and one by PyTorch in float64."""
    norm = create_norm(x.shape[1])
    exact = nn.BatchNorm2d(x.shape[1]).double()
    exact.load_state_dict(norm.state_dict())
    doubled = None if residual is None else residual.double()
    expected = step(exact, x.double(), doubled, dy.double(), activation)
    return step(norm, x, residual, dy, activation), expected


def assert_close(found, expected, tolerance=3e-6):
    assert found.keys() == expected.keys()
    assert found.pop("num_batches_tracked") == expected.pop("num_batches_tracked") == 1
    for key, value in expected.items():
        error = (found[key].double() - value).abs().max()
        assert error <= tolerance * value.abs().max().clamp_min(1), f"{key} is off by {error}"


@pytest.mark.parametrize(
    ("with_residual", "activation"),
    [(False, RELU), (False, RELU1), (True, RELU), (True, RELU1), (True, LINEAR)],
)
def test_training_and_evaluation(with_residual, activation):
    """Several programs each way, the last with masked channels and a partial tile of rows."""
    x, residual, dy = torch.randn(3, 5, 40, 1, 7)
    residual = residual if with_residual else None
    tiles = choose_tiling(35, 40)
    assert tiles.grid == (2, 2)
    assert tiles.chunk_rows > 8 > 35 % 8 > 0
    assert_close(*both(x, residual, dy, activation))
    norm = create_norm(40).eval()
    y = batch_norm_act_eval(norm, x, residual, activation)
    expected = activate(norm(x) + residual if with_residual else norm(x), activation)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 1, 1, 1), torch.contiguous_format),
        ((4, 64, 2, 4), torch.channels_last),  # whole tiles
    ],
)
def test_shapes_and_layouts(shape, layout):
    """The gradient of a mean over the maps has strides of 0."""
    x, residual, dy = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(3))
    assert_close(*both(x, residual, dy[..., :1, :1].expand(shape), RELU), tolerance=1e-5)


def test_partials_of_many_chunks(monkeypatch):
    """More chunks than one iteration merges."""
    use_small_tiles(monkeypatch, tile_size=128, programs=1000)
    x, dy = torch.randn(2, 5, 24, 2, 2)
    tiles = choose_tiling(20, 24)
    assert tiles.grid[1] > 2 * tiles.block_partials > 2
    assert_close(*both(x, None, dy, RELU), tolerance=1e-5)


def test_large_means_do_not_cancel():
    """In float32, the squares of 3000 leave no digit to a variance of 1."""
    x = torch.randn(4, 8, 6, 6) + 3000
    naive = (x.square().mean((0, 2, 3)) - x.mean((0, 2, 3)).square()).double()
    exact = x.double().var((0, 2, 3), correction=0)
    assert ((naive - exact).abs() > 0.05).any()
    found, expected = both(x, None, torch.randn_like(x), LINEAR)
    for key in ("running_var", "dweight", "dx"):
        torch.testing.assert_close(found[key].double(), expected[key], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found["y"].double(), expected["y"], rtol=0, atol=2e-3)


def test_constant_channels_have_no_variance():
    x = torch.full((4, 8, 3, 3), 0.1)
    norm = create_norm(8)
    before = norm.running_var.clone()
    found = step(norm, x, None, torch.ones_like(x), LINEAR)
    assert found["y"].isfinite().all()
    torch.testing.assert_close(norm.running_var, 0.9 * before)


def test_bfloat16():
    x, residual, dy = torch.randn(3, 4, 24, 3, 3).bfloat16()
    found, expected = both(x, residual, dy, RELU)
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
    found = step(nn.BatchNorm2d(4), x, residual, torch.ones(2, 4, 1, 1), RELU)
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


@pytest.mark.parametrize("groups", [1, 2])
def test_padding_of_a_norm_layer_is_zero(groups):
    """Also without eps; the other channels are those of a shuffle."""
    norm, x = create_norm(10), torch.randn(3, 16, 2, 5)
    x[:, 10:] = 0.0
    x, twin = x.requires_grad_(), copy.deepcopy(norm)
    norm.eps, twin.eps = 0.0, 1e-12  # PyTorch refuses 0
    dy = torch.randn(3, 16, 2, 5)
    y = batch_norm_act(norm, x, None, RELU, shuffled_groups=groups)
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


@pytest.mark.parametrize(
    ("with_residual", "activation"), [(False, RELU), (True, RELU), (True, LINEAR)]
)
def test_two_gradients_are_added(with_residual, activation):
    """Their sum as the only gradient, of either output, gives the same."""
    x, dy, dy2 = torch.randn(3, 5, 24, 1, 7)
    norm = create_norm(24)
    inputs = [x.requires_grad_(), norm.weight, norm.bias]
    residual = None
    if with_residual:
        residual = torch.randn_like(x, requires_grad=True)
        inputs.append(residual)
    outputs = _BatchNormAct.apply(x, norm.weight, norm.bias, residual, norm, activation, None, 0)
    assert outputs[0].data_ptr() == outputs[1].data_ptr()
    found = torch.autograd.grad(outputs, inputs, [dy, dy2], retain_graph=True)
    for output in outputs:
        expected = torch.autograd.grad(output, inputs, dy + dy2, retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_activations_for_two_branches():
    norm = create_norm(8)
    x = torch.randn(3, 8, 3, 3, requires_grad=True)
    y = batch_norm_act(norm, x, None, RELU)
    assert branch(y)[1] is y  # torch.autograd.grad may be called
    with using(fuses_gradient_sums=True):
        one, other = branch(y)
    assert one is y
    assert other is not y
    assert torch.equal(one, other)
    (one + other).sum().backward()
    freed = weakref.ref(y)
    del y, one, other
    assert freed() is None  # no reference cycle
    with using(fuses_gradient_sums=True):
        assert branch(x)[1] is x


def register(hook):
    def change(y):
        y.register_hook(hook)
        return y

    return change


CHANGES = {
    "none": lambda y: y,
    "scaled": lambda y: y.mul_(3),
    "activated": lambda y: torch.relu_(y),
    "detached": lambda y: y.detach_(),
    "observed by a hook": register(lambda gradient: None),
    "changed by a hook": register(lambda gradient: 0 * gradient),
    "gradient retained": lambda y: y.retain_grad() or y,
}


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_of_changed_activations_are_autograds(change):
    norm, scale = create_norm(8), torch.ones(8, 1, 1, requires_grad=True)
    x = torch.randn(3, 8, 3, 3)
    weights = torch.randn(2, *x.shape)

    def gradients(layer):
        norm.zero_grad()
        scale.grad = None
        y = CHANGES[change](layer(x))
        with using(fuses_gradient_sums=True):
            one, other = branch(y)
        assert (other is not y) == (change == "none" and layer is fused_layer)
        ((one * weights[0] + other * weights[1]) * scale).sum().backward()
        return norm.weight.grad, scale.grad, y.grad if y.retains_grad else None

    def fused_layer(x):
        return batch_norm_act(norm, x, None, LINEAR)

    def plain_layer(x):
        return F.batch_norm(x, None, None, norm.weight, norm.bias, True)

    for one, other in zip(gradients(fused_layer), gradients(plain_layer), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_activations_without_graph_are_leaves():
    norm = create_norm(8)
    with torch.no_grad():
        y = batch_norm_act(norm, torch.randn(3, 8, 3, 3), None, RELU)
    with using(fuses_gradient_sums=True):
        one, other = branch(y.requires_grad_())
    (one + 2 * other).sum().backward()
    assert torch.equal(y.grad, torch.full_like(y, 3.0))
