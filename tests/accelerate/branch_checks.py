"""Gradients of two branches, added by the BatchNorm kernel, in Triton's interpreter."""

import weakref

import pytest
import torch
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.batch_norm import (
    Activation,
    _BatchNormAct,
    batch_norm_act,
    branch,
)
from tests.accelerate.convolution_helpers import create_norm, use_small_tiles
from tests.accelerate.pairwise import pairwise

RELU, LINEAR = Activation(), Activation(False)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    use_small_tiles(monkeypatch)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("with_residual", "activation", "single_kernel"),
    pairwise([False, True], [RELU, LINEAR], [False, True]),
)
def test_two_gradients_are_added(with_residual, activation, single_kernel):
    """Their sum as the only gradient, of either output, gives the same."""
    x, dy, dy2 = torch.randn(3, 5, 24, 1, 7)
    norm = create_norm(24)
    inputs = [x.requires_grad_(), norm.weight, norm.bias]
    residual = None
    if with_residual:
        residual = torch.randn_like(x, requires_grad=True)
        inputs.append(residual)
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    outputs = _BatchNormAct.apply(
        x, norm.weight, norm.bias, residual, buffers, (0.1, 1e-5), activation, single_kernel
    )
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
    weights = torch.randn(2, *y.shape)
    ((one * weights[0]).sum() + (other * weights[1]).sum()).backward()
    found, x.grad = x.grad, None
    z = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, True))
    (z * weights.sum(0)).sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-5)
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
