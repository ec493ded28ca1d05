"""Training steps of ShuffleNet's units on a GPU, for all numbers of groups.

``shuffle_unit_checks.py`` runs the same kernels in Triton's interpreter.
"""

import copy

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.networks import choose_unit, shuffle_unit_train
from fedaux_pl.models.shufflenet import _FIRST_STAGE_CHANNELS, ShuffleUnit
from tests.accelerate.convolution_helpers import randomize_norms
from tests.accelerate.pairwise import pairwise

pytestmark = pytest.mark.cuda


def step(unit, x, dy, half=True):
    """Output, gradients and running statistics of a training step, each as one vector."""
    x, unit = x.clone().requires_grad_(), copy.deepcopy(unit)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        y = unit(x)
    y.backward(dy.to(y.dtype))
    gradients = {f"d{name}": p.grad for name, p in unit.named_parameters()}
    found = {"y": y, "dx": x.grad} | gradients | dict(unit.named_buffers())
    return {name: value.detach().double().flatten() for name, value in found.items()}


@pytest.mark.parametrize(
    ("groups", "kind", "shape"),
    pairwise(
        [1, 2, 3, 4, 8],
        ["first", "stride 1", "stride 2"],
        [(128, 16, 16), (32, 4, 4), (16, 7, 5)],
    ),
)
def test_cuda_units_are_as_exact_as_plain_ones(groups, kind, shape):
    """Compared with float64, for each gradient on its own; and the same bits every time."""
    torch.manual_seed(0)
    channels = _FIRST_STAGE_CHANNELS[groups]
    in_channels, out_channels, stride, first_groups = {
        "first": (24, channels, 2, 1),
        "stride 1": (channels, channels, 1, groups),
        "stride 2": (channels, 2 * channels, 2, groups),
    }[kind]
    unit = ShuffleUnit(in_channels, out_channels, stride, groups, first_groups, nn.BatchNorm2d)
    unit = speed_up(randomize_norms(unit)).cuda().to(memory_format=torch.channels_last)
    n, height, width = shape
    x = torch.randn(n, in_channels, height, width, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    out_shape = (n, out_channels, -(-height // stride), -(-width // stride))
    dy = torch.randn(out_shape, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        assert choose_unit(unit, x) is shuffle_unit_train
    found, again = step(unit, x, dy), step(unit, x, dy)
    with using(plain=True):
        plain = step(unit, x, dy)
        exact = step(unit.double(), x.double(), dy.double(), half=False)
    for name, value in exact.items():
        assert torch.equal(found[name], again[name]), name
        error, allowed = (found[name] - value).norm(), 3 * (plain[name] - value).norm()
        # the gradient of norm2's bias is zero: the next layer is followed by a norm layer
        scale = exact["dnorm2.weight" if name == "dnorm2.bias" else name].norm()
        assert error <= allowed + 5e-3 * scale, name
