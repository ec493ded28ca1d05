"""Units of ShuffleNet in training and in evaluation, in Triton's interpreter."""

import collections
import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import batch_norm, networks, pointwise_products
from fedaux_pl.accelerate.convolution.networks import choose_unit
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.models import create_model
from fedaux_pl.models.shufflenet import ShuffleUnit
from tests.accelerate.convolution_helpers import (
    create_stream,
    fold_in_pytorch,
    fuse_on_cpu,
    randomize_norms,
    record_units,
    use_one_program,
    use_small_chunks,
    use_small_tiles,
)

# input and output channels, stride, groups, groups of the first layer
UNITS = [
    (40, 40, 1, 2, 2),  # 10 inner channels
    (24, 72, 2, 3, 3),  # 18 inner channels
    (8, 24, 2, 2, 1),  # the first unit has no groups in its first layer
    (64, 64, 1, 4, 4),  # 16 inner channels: no padding
    (16, 16, 1, 1, 1),
]


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    use_small_tiles(monkeypatch, tile_size=512)
    torch.manual_seed(0)


@pytest.fixture
def in_float32(monkeypatch):
    """Units take the path of half precision in float32, for exact comparisons."""
    monkeypatch.setattr(networks, "HALF", (torch.float32,))


@pytest.fixture
def several_programs(monkeypatch):
    """Several programs each way for BatchNorm and depthwise convolutions."""
    monkeypatch.setattr(batch_norm, "BLOCK_CHANNELS", 8)
    use_small_chunks(monkeypatch, block_channels=8)


@pytest.fixture
def called(monkeypatch):
    return record_units(monkeypatch, "shuffle_unit_train")


def create(*sizes):
    return speed_up(randomize_norms(ShuffleUnit(*sizes, nn.BatchNorm2d)))


def step(unit, x):
    """Output, gradients and buffers of a training step."""
    x = x.clone().requires_grad_()
    y = unit(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y)
    (y * weights.to(y.dtype)).sum().backward()
    join_weight_gradients()
    found = {"y": y.detach(), "dx": x.grad} | dict(unit.named_buffers())
    return found | {f"d{name}": value.grad for name, value in unit.named_parameters()}


def compare(unit, x, tolerance, run=step):
    """With the plain unit in float64."""
    exact = copy.deepcopy(unit).double()
    found = run(unit, x)
    with using(plain=True):
        expected = step(exact, x.double())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        # clamped: a bias before a layer that is followed by a norm layer has a gradient of zero
        scale = value.double().norm().clamp_min(1.0)
        error = (found[name].double() - value.double()).norm() / scale
        assert error < tolerance, f"{name} is off by {error}"
    for name, parameter in unit.named_parameters():
        assert parameter.grad.stride() == parameter.stride(), name  # as fused optimizers need


@pytest.mark.parametrize("sizes", UNITS)
@pytest.mark.usefixtures("in_float32", "several_programs")
def test_units(sizes, called):
    unit = create(*sizes)
    compare(unit, torch.randn(3, sizes[0], 3, 4), 3e-5)
    assert called == [unit]


@pytest.mark.usefixtures("in_float32")
def test_weight_gradients_on_the_side_stream(monkeypatch):
    sizes = UNITS[1]
    unit, stream = create(*sizes).to(memory_format=torch.channels_last), create_stream(monkeypatch)

    def run(unit, x):
        with weight_gradients_on(stream):
            unit(x).sum().backward()
            late = {name for name, value in unit.named_parameters() if value.grad is None}
            assert late == {"reduce.weight", "depthwise.weight", "expand.weight"}
            join_weight_gradients()
            unit.zero_grad()
            unit.load_state_dict(start)
            return step(unit, x)

    start = copy.deepcopy(unit.state_dict())
    compare(unit, torch.randn(3, sizes[0], 4, 4), 3e-5, run)


@pytest.mark.usefixtures("in_float32")
def test_units_in_a_row():
    """Gradients of both branches are added by the BatchNorm kernel."""
    units = nn.Sequential(create(8, 40, 2, 2, 1), create(40, 40, 1, 2, 2), create(40, 40, 1, 2, 2))

    def run(units, x):
        with using(fuses_gradient_sums=True):
            return step(units, x)

    compare(units, torch.randn(8, 8, 4, 4), 1e-4, run)


def test_half_precision(called):
    """The interpreter truncates to bfloat16 where GPUs round."""
    unit, x = create(*UNITS[0]), torch.randn(4, 40, 4, 4).bfloat16()
    exact = copy.deepcopy(unit).double()
    with torch.autocast("cpu", torch.bfloat16):
        y = unit(x)
    with using(plain=True):
        expected = exact(x.double())
    assert called == [unit]
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (y - expected).norm() < 2**-5 * expected.norm()


def test_a_network_writes_all_matrices_at_once(monkeypatch):
    """The gradients are those of matrices that are written one by one."""
    use_one_program(monkeypatch)
    model = speed_up(create_model("shufflenet", 4, width=0.25)).train()
    model.units = model.units[:1]
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    written, matrix_of = [], pointwise_products.matrix_of
    monkeypatch.setattr(
        pointwise_products, "matrix_of", lambda *args: written.append(args) or matrix_of(*args)
    )

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model.features(x).logsumexp(1).float().sum().backward()
        return [p.grad for p in model.units.parameters()]

    found = gradients()
    assert not written
    monkeypatch.setattr(networks, "padded_products", lambda units, x: [])
    assert all(map(torch.equal, found, gradients()))
    assert len(written) == 2


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        (UNITS[0], {}),
        # the output is concatenated: the norm layer copies its part of the gradient
        (UNITS[1], {"relu": 1, "cat": 1, "threshold_backward": 1, "clone": 1}),
    ],
)
@pytest.mark.usefixtures("in_float32", "several_programs")
def test_a_step_copies_no_activations(sizes, more):
    unit = create(*sizes)
    x = torch.randn(2, sizes[0], 3, 3).contiguous(memory_format=torch.channels_last)
    size = 2 if unit.downsample else 3
    dy = torch.randn(2, sizes[1], size, size).contiguous(memory_format=torch.channels_last)
    operations = collections.Counter()

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if not function.is_view:
                operations[function.__name__.split(".")[0]] += 1
            return function(*args, **(kwargs or {}))

    with Counter():
        unit(x.requires_grad_()).backward(dy)
    # copy_ writes matrices and gradients, and with set_ it is the interpreter's
    found = {name for name in operations if "empty" not in name} - {"set_", "copy_"}
    # products forward and for both gradients; two matrices, which start as zeros; autograd adds the
    # gradients of two branches
    expected = {"mm": 6, "new_zeros": 2, "add": 1} | more
    assert {name: operations[name] for name in found} == expected


def test_other_units_are_trained_as_layers(called):
    x = torch.randn(2, 16, 4, 4).bfloat16()
    unit = create(16, 16, 1, 2, 2)
    assert not choose_unit(unit, x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert choose_unit(unit, x) is networks.shuffle_unit_train
        assert not choose_unit(unit, x.float())  # the residual is float32
        assert not choose_unit(unit, x[:, :8])
        assert not choose_unit(unit, x[:1, :, :1, :1])
        assert not choose_unit(create(16, 32, 2, 2, 1), x[:1, :, :2, :2])
        for name, layer in (
            ("norm1", nn.GroupNorm(1, 4)),
            ("norm3", nn.BatchNorm2d(16).eval()),
            ("expand", nn.Conv2d(4, 16, 1)),
            ("reduce", nn.Conv2d(16, 4, 1)),
            ("depthwise", nn.Conv2d(4, 4, 3, 1, 1, groups=4)),
        ):
            other = create(16, 16, 1, 2, 2)
            setattr(other, name, layer)
            assert not choose_unit(other, x), name
        hooked = create(16, 16, 1, 2, 2)
        hooked.norm2.register_forward_hook(lambda *_: None)
        hooked(x)
    assert not called


@pytest.mark.parametrize(("sizes", "size"), zip(UNITS[1:4], [5, 5, 4], strict=True))
def test_evaluation(sizes, size, monkeypatch):
    fold_in_pytorch(monkeypatch)
    called = record_units(monkeypatch, "shuffle_unit_eval")
    unit, x = create(*sizes).eval(), torch.randn(3, sizes[0], size, size).bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = unit(x)
    assert called == [unit]
    with torch.no_grad(), using(plain=True):
        expected = unit.double()(x.double())
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() < 2**-6 * expected.norm()


def test_other_units_are_evaluated_as_layers():
    x = torch.randn(2, 16, 4, 4).bfloat16()
    unit = create(16, 16, 1, 2, 2).eval()
    assert not choose_unit(unit, x)  # gradients are enabled
    with torch.no_grad():
        assert not choose_unit(unit, x.float())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert choose_unit(unit, x) is networks.shuffle_unit_eval
        unit.norm2.train()
        assert not choose_unit(unit, x)
        hooked = create(16, 16, 1, 2, 2).eval()
        hooked.norm2.register_forward_hook(lambda *_: None)
        assert not choose_unit(hooked, x)
        group_norm = speed_up(ShuffleUnit(16, 16, 1, 2, 2, lambda c: nn.GroupNorm(1, c))).eval()
        assert not choose_unit(group_norm, x)
