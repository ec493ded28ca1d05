"""Whole networks with fused layers, with kernels in Triton's interpreter."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution import (
    folding,
    image_stem,
    networks,
    pointwise_products,
    weight_gradients,
)
from fedaux_pl.accelerate.convolution.image_stem import convolve_images, standardize
from fedaux_pl.accelerate.convolution.pointwise_products import fits_product
from fedaux_pl.accelerate.convolution.weight_gradients import (
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.engine.inference import evaluating
from fedaux_pl.models import InputNormalization
from fedaux_pl.models import create_model as create_plain
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
def test_networks(name, half):
    """Fused layers compute what the modules compute, in training and in both evaluation modes."""
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
            for statistics in ("running", "batch"):
                with torch.no_grad(), evaluating(model, statistics):
                    found[statistics] = model(x)
        return found

    with using(fuses_gradient_sums=True):
        got = results()
    with using(plain=True):
        expected = results()
    # bfloat16 has 8 bits, which the interpreter truncates; its gradients are mostly noise here
    tolerance = 0.1 if half else 1e-3
    for key, value in expected.items():
        if not (half and key == "gradient"):
            # means of zero but for rounding, after layers without bias, have no relative error
            error = (got[key] - value).double().norm() / value.double().norm().clamp_min(0.01)
            assert error < tolerance, f"{key} is off by {error}"


@pytest.mark.parametrize(
    ("name", "options", "statistics", "read_channels"),
    [
        ("resnet8", {}, "running", [3]),
        ("resnet8", {}, "batch", [3]),
        ("resnet8", {"in_channels": 1}, "running", [1]),
        ("resnet8", {"in_channels": 4}, "running", [8]),
        ("resnet8", {"norm": "group"}, "running", []),
        ("mobilenetv2", {}, "running", [3]),
        ("shufflenet", {}, "running", [3]),
        ("shufflenet", {"width": 0.5}, "running", []),  # the kernel does not support 12 channels
    ],
)
def test_some_stems_read_nchw_images(name, options, statistics, read_channels, monkeypatch):
    """Those with a kernel, without a backward pass; the kernel reads the images without a copy."""
    model = create_model(name, 4, **options)
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm))
    upper = 6.0 if name == "mobilenetv2" else None
    x = torch.randint(0, 256, (2, conv.in_channels, 4, 4), dtype=torch.uint8)
    made, read = [], []

    def standardize_and_note(*args, **options):
        made.append(standardize(*args, **options))
        return made[-1]

    def convolve_and_note(images, *args, **options):
        read.append(images)
        return convolve_images(images, *args, **options)

    def stem_alone(self, images):
        return fused.conv_norm_act(conv, norm, images, upper=upper)

    monkeypatch.setattr(type(model), "feature_map", stem_alone)
    monkeypatch.setattr(networks, "padded_products", lambda units, x: [])  # of the other layers
    monkeypatch.setattr(networks, "standardize", standardize_and_note)
    for module in (image_stem, folding):
        monkeypatch.setattr(module, "convolve_images", convolve_and_note)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad(), evaluating(model, statistics):
            found = model.features(x)
            assert made[0].is_contiguous() == (read_channels in ([1], [3]))
            assert all(images.data_ptr() == made[0].data_ptr() for images in read)
            assert [images.shape[1] for images in read] == read_channels
            with monkeypatch.context() as patched:
                patched.setattr(networks, "reads_nchw", lambda *args: False)
                expected = model.features(x)
        model.features(x)
    assert not any(images.is_contiguous() for images in made[1:])
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_a_network_folds_its_shortcuts(monkeypatch):
    model, with_shortcut = create_model("resnet8", 4, width=0.1).eval(), []
    convolve = fused.convolve_folded
    monkeypatch.setattr(
        fused,
        "convolve_folded",
        lambda *args: with_shortcut.append(len(args) == 5) or convolve(*args),
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8))
    # the stem, then two convolutions per stage; the last three stages have a shortcut
    assert with_shortcut == [False, False, False, False, True, False, True, False, True]


def test_fused_gradient_sums_of_a_network():
    model = create_model("resnet8", 4, width=0.1).train()
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def gradients():
        model.load_state_dict(start)
        model.zero_grad()
        model(x).logsumexp(1).sum().backward()
        return [p.grad for p in model.parameters()]

    expected = gradients()
    with using(fuses_gradient_sums=True):
        found = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_weights_are_cast_at_once_and_their_gradients_on_the_side_stream(monkeypatch):
    """All but the stem's are cast by one call, and the gradients are those of casts one by one."""
    stream = create_stream(monkeypatch)
    model = create_model("resnet8", 4, width=0.25).to(memory_format=torch.channels_last).train()
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    calls, padded = [], []
    cast_all, pad_weight = fused.cast_all, image_stem.pad_weight
    monkeypatch.setattr(fused, "cast_all", lambda w, dtype: calls.append(w) or cast_all(w, dtype))
    for module in (image_stem, weight_gradients):
        monkeypatch.setattr(
            module, "pad_weight", lambda w, *to: padded.append(w) or pad_weight(w, *to)
        )

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
    assert [len(weights) for weights in calls] == [len(convolutions) - 1] * 2
    assert len(padded) == 2
    for parameter, one, other in zip(model.parameters(), on_side, inline, strict=True):
        assert one.stride() == parameter.stride()
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))
    monkeypatch.setattr(fused, "is_castable", lambda conv: False)
    assert all(map(torch.equal, inline, gradients()[0]))
    with weight_gradients_on(stream):
        assert all(map(torch.equal, on_side, gradients()[0]))
    assert len(calls) == 2


def test_weights_are_not_cast_without_training(monkeypatch):
    monkeypatch.setattr(fused, "cast_all", None)  # calling it would fail
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    model = create_model("resnet8", 4, width=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            model.train()(x)
            model.eval()(x)
        model.eval()(x)
        create_model("resnet8", 4, width=0.1, norm="group").train()(x)
    model.train()(x)  # in float32


class OwnNormalization(InputNormalization):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("normalize", [nn.Identity(), OwnNormalization()])
def test_images_may_be_standardized_otherwise(normalize):
    model = create_model("resnet8", 4, width=0.25).eval()
    model.normalize = normalize
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
        with using(plain=True):
            torch.testing.assert_close(found, model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("on_side", [False, True])
@pytest.mark.parametrize(
    ("groups", "layout"),
    [(1, torch.channels_last), (2, torch.contiguous_format), (3, torch.channels_last)],
)
def test_1x1_convolutions_are_matrix_products(groups, layout, on_side, monkeypatch):
    """With the weight gradient on either stream; several blocks of the kernels."""
    monkeypatch.setattr(pointwise_products, "BLOCK", 64)
    stream = create_stream(monkeypatch)
    conv = nn.Conv2d(24, 18, 1, groups=groups, bias=False).to(memory_format=layout)
    inputs = [torch.randn(2, 24, 3, 5).bfloat16().requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0])
    with weight_gradients_on(stream) if on_side else nullcontext():
        found, _ = fused._convolve(conv, inputs[0], torch.bfloat16)
        assert found.dtype == torch.bfloat16
        assert found.is_contiguous(memory_format=torch.channels_last)
        found.float().square().sum().backward()
        assert (conv.weight.grad is None) == on_side
        join_weight_gradients()
    assert conv.weight.grad.stride() == conv.weight.stride()
    gradient, conv.weight.grad = conv.weight.grad, None
    expected = F.conv2d(inputs[1].float(), conv.weight.bfloat16().float(), groups=groups)
    expected.square().sum().backward()
    for one, other in (
        (found, expected),
        (inputs[0].grad, inputs[1].grad),
        (gradient, conv.weight.grad),
    ):
        # the interpreter truncates the weight to bfloat16 where GPUs round
        assert (one.float() - other.float()).norm() < 2e-2 * other.float().norm()


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(8, 8, 1, groups=8, bias=False),  # a factor per channel
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.Conv2d(8, 8, 1, stride=2, bias=False),
        nn.Conv2d(8, 8, 1, stride=2, groups=2, bias=False),
        nn.Conv2d(8, 8, 1, padding=1, groups=2, bias=False),
        nn.Conv2d(8, 8, 1),
        nn.Conv2d(8, 8, 1, groups=2),
        nn.Conv2d(16, 8, 1, bias=False),  # raises its error
    ],
)
def test_other_convolutions_are_not_matrix_products(conv):
    assert not fits_product(conv, torch.zeros(2, 8, 4, 4), torch.bfloat16)


def test_dense_products_need_aligned_channels():
    assert fits_product(nn.Conv2d(8, 9, 1, bias=False), torch.zeros(2, 8, 4, 4), torch.bfloat16)
    conv, x = nn.Conv2d(12, 8, 1, bias=False), torch.zeros(2, 12, 4, 4)
    assert not fits_product(conv, x, torch.bfloat16)
    assert fits_product(nn.Conv2d(12, 8, 1, groups=2, bias=False), x, torch.bfloat16)
    assert not fits_product(nn.Conv2d(12, 8, 1, groups=2, bias=False), x, torch.float32)
