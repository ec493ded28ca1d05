"""Units of ShuffleNet in three kernels, and average pooling, in Triton's interpreter."""

from itertools import cycle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution.depthwise import average_pool
from fedaux_pl.accelerate.convolution.folding import FoldCache
from fedaux_pl.accelerate.convolution.shuffle_unit import fits_three_kernels
from fedaux_pl.models.shufflenet import ShuffleUnit
from tests.accelerate.convolution_helpers import (
    fold_in_pytorch,
    fuse_on_cpu,
    randomize_norms,
    record_units,
)

UNITS = [
    (16, 16, 1, 2, 2),
    (24, 24, 1, 3, 3),
    (8, 24, 2, 2, 1),  # the first unit has no groups in its first layer
    (24, 48, 2, 3, 3),
    (40, 40, 1, 2, 2),  # 10 inner channels, padded to 16
]


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    fold_in_pytorch(monkeypatch)
    torch.manual_seed(0)


@pytest.fixture
def called(monkeypatch):
    return record_units(monkeypatch, "shuffle_unit_eval")


def create(*sizes):
    return speed_up(randomize_norms(ShuffleUnit(*sizes, nn.BatchNorm2d))).eval()


def run(unit, x):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return unit(x)


def compare(unit, x, found):
    """With the layers in float64, which get the same inputs."""
    with torch.no_grad(), using(plain=True):
        expected = unit.double()(x.double())
    unit.float()
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() < 2**-6 * expected.norm()


@pytest.mark.parametrize(("sizes", "size"), zip(UNITS, cycle([4, 5])))
def test_units(sizes, size, called):
    unit, x = create(*sizes), torch.randn(3, sizes[0], size, size).bfloat16()
    compare(unit, x, run(unit, x))
    assert len(called) == 1


def test_new_weights_are_seen_after_a_refresh(called):
    unit, x, cache = create(*UNITS[3]), torch.randn(2, 24, 4, 4).bfloat16(), FoldCache()
    with using(folds=cache):
        before = run(unit, x)
        with torch.no_grad():
            for tensor in (*unit.parameters(), *unit.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.5)
        assert torch.equal(run(unit, x), before)
        cache.refresh()
        compare(unit, x, run(unit, x))
    assert len(called) == 3


def test_other_units_run_as_layers(called):
    x = torch.randn(2, 16, 4, 4).bfloat16()
    unit = create(*UNITS[0])
    assert not fits_three_kernels(unit, x)  # gradients are enabled
    with torch.no_grad():
        assert not fits_three_kernels(unit, x.float())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fits_three_kernels(unit, x)
        assert not fits_three_kernels(unit.train(), x)
        hooked = create(*UNITS[0])
        hooked.norm2.register_forward_hook(lambda *_: None)
        assert not fits_three_kernels(hooked, x)
        group_norm = speed_up(ShuffleUnit(*UNITS[0], lambda c: nn.GroupNorm(1, c))).eval()
        assert not fits_three_kernels(group_norm, x)
    assert not called


@pytest.mark.parametrize("size", [(4, 4), (5, 3)])
def test_average_pool(size):
    x = torch.randn(2, 6, *size).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = x.detach().clone().requires_grad_()
    found, expected = average_pool(x), F.avg_pool2d(y, 3, stride=2, padding=1)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(x.grad, y.grad)
