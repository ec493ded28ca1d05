"""Whole networks with fused layers, with kernels in Triton's interpreter."""

import pytest
import torch
from torch import nn

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.models import create_model as create_plain
from fedaux_pl.models import mobilenet, shufflenet
from tests.accelerate.convolution_helpers import (
    create_stream,
    fold_in_pytorch,
    fuse_on_cpu,
    use_one_program,
)


def create_model(*args, **options):
    return speed_up(create_plain(*args, **options))


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    use_one_program(monkeypatch)
    fold_in_pytorch(monkeypatch)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("name", "half"),
    [("resnet8", False), ("resnet8", True), ("mobilenetv2", False), ("shufflenet", False)],
)
def test_networks(name, half, monkeypatch):
    """Fused layers compute what the modules compute, in training and in both evaluation modes."""
    # blocks of each kind
    monkeypatch.setattr(mobilenet, "_STAGES", ((1, 16, 1, 1), (6, 24, 2, 2)))
    monkeypatch.setattr(shufflenet, "_UNITS", (2, 1))
    model = create_model(name, 4, width=0.1)
    # small images for deep networks: interpreted kernels are slow
    size = 8 if name == "resnet8" else 4
    x = torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8)
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def results():
        model.load_state_dict(start)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = model.train()(x)
            outputs.logsumexp(1).float().sum().backward()
            found = {"outputs": outputs.detach()}
            found |= {key: value.clone() for key, value in model.named_buffers()}
            found["gradient"] = torch.cat([p.grad.flatten() for p in model.parameters()])
            with torch.no_grad():
                found["evaluated"] = model.eval()(x)
        return found

    with using(fuses_gradient_sums=True):
        got = results()
    with using(plain=True):
        expected = results()
        model.double()
        exact = expected if half else results()
    # bfloat16 has 8 bits, which the interpreter truncates; its gradients are mostly noise here
    tolerance = 0.1 if half else 1e-3
    for key, value in exact.items():
        if not (half and key == "gradient"):
            # means of zero but for rounding, after layers without bias, have no relative error
            scale = value.double().norm().clamp_min(0.01)
            error = (got[key] - value).double().norm() / scale
            # BatchNorm of 8 values amplifies rounding: 1.4e-3 for a plain gradient on x86
            rounding = (expected[key] - value).double().norm() / scale
            assert error < max(tolerance, 4 * rounding), f"{key} is off by {error}"


def test_a_network_folds_its_shortcuts(monkeypatch):
    model, with_shortcut = create_model("resnet8", 4, width=0.25).eval(), []
    convolve = fused.convolve_folded
    monkeypatch.setattr(
        fused,
        "convolve_folded",
        lambda *args: with_shortcut.append(len(args) == 4) or convolve(*args),
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8))
    # two convolutions per stage; the last three stages have a shortcut
    assert with_shortcut == [False, False, False, True, False, True, False, True]


def test_weight_gradients_of_a_network_on_the_side_stream(monkeypatch):
    stream = create_stream(monkeypatch)
    model = create_model("resnet8", 4, width=0.25).to(memory_format=torch.channels_last).train()
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(x).logsumexp(1).float().sum().backward()
        late = [m for m in convolutions if m.weight.grad is None]
        join_weight_gradients()
        return [p.grad for p in model.parameters()], late

    inline, late = gradients()
    assert not late
    with weight_gradients_on(stream):
        on_side, late = gradients()
    assert late == convolutions
    for parameter, one, other in zip(model.parameters(), on_side, inline, strict=True):
        assert one.stride() == parameter.stride()
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))


def test_images_may_be_standardized_otherwise():
    model = create_model("resnet8", 4, width=0.25).eval()
    model.normalize = nn.Identity()
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
        with using(plain=True):
            torch.testing.assert_close(found, model(x), rtol=0.05, atol=0.05)
