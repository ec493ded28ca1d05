"""Tests of the Triton kernels on the CPU; ``test_kernels.py`` runs them in its own process."""

import dataclasses
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.models import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.engine import forwards, predict_logits
from fedaux_pl.engine.forwards import RecordedForward
from fedaux_pl.engine.inference import evaluating
from fedaux_pl.models import (
    base,
    batch_norm,
    create_model,
    folding,
    fused,
    overlap,
    pairs,
    stem,
    tiling,
)
from fedaux_pl.models.batch_norm import Activation, _BatchNormAct, batch_norm_act_eval
from fedaux_pl.models.folding import Folded, Folds, convolve_folded
from fedaux_pl.models.overlap import convolve_overlapped, join, overlapping
from fedaux_pl.models.stem import (
    convolve_images,
    convolve_stem,
    is_stem,
    pad_channels,
    standardize,
    stem_images,
)
from tests.recorders import Counted

RELU, RELU1, LINEAR = Activation(), Activation(True, 1.0), Activation(False)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """So that small tensors have several tiles and chunks too."""
    use_tiles_of(1024, monkeypatch)


def use_tiles_of(values, monkeypatch, **changes):
    shares = dataclasses.replace(tiling.ALONE, tile=values, **changes)
    monkeypatch.setattr(tiling, "ALONE", shares)


def norm_layer(channels):
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def activated(z, activation):
    if not activation.relu:
        return z
    return F.relu(z) if activation.upper is None else F.hardtanh(z, 0.0, activation.upper)


def step(norm, x, residual, dy, activation, single):
    """Output, gradients and what the layer keeps of one training step."""
    x = x.clone().requires_grad_()
    residual = None if residual is None else residual.clone().requires_grad_()
    if norm.weight.dtype == torch.float64:
        z = norm(x)
        y = activated(z if residual is None else z + residual, activation)
    else:
        buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        y, _ = _BatchNormAct.apply(
            x, norm.weight, norm.bias, residual, buffers, (0.1, 1e-5), activation, single
        )
    y.backward(dy)
    found = {"y": y.detach(), "dx": x.grad, "dweight": norm.weight.grad, "dbias": norm.bias.grad}
    if residual is not None:
        found["dresidual"] = residual.grad
    return {**found, **dict(norm.named_buffers())}


def both(x, residual, dy, activation, single=None):
    """A step of ours and one of PyTorch's in float64."""
    norm = norm_layer(x.shape[1])
    exact = nn.BatchNorm2d(x.shape[1]).double()
    exact.load_state_dict(norm.state_dict())
    expected = step(
        exact,
        x.double(),
        None if residual is None else residual.double(),
        dy.double(),
        activation,
        None,
    )
    return step(norm, x, residual, dy, activation, single), expected


def assert_close(found, expected, tolerance=3e-6):
    assert found.keys() == expected.keys()
    assert found.pop("num_batches_tracked") == expected.pop("num_batches_tracked") == 1
    for key, value in expected.items():
        error = (found[key].double() - value).abs().max()
        assert error <= tolerance * value.abs().max().clamp_min(1), f"{key} is off by {error}"


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("activation", [RELU, RELU1, LINEAR])
@pytest.mark.parametrize("with_residual", [False, True])
def test_training_step(with_residual, activation, single):
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 5, 24, 7, 5).movedim(2, 2)
    found, expected = both(x, residual if with_residual else None, dy, activation, single)
    assert_close(found, expected)


@pytest.mark.parametrize(
    "shape",
    [(2, 1, 1, 1), (1, 3, 1, 3), (3, 8, 11, 13), (2, 64, 5, 5), (2, 200, 3, 3), (2, 512, 2, 3)],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_shapes_and_layouts(shape, layout):
    torch.manual_seed(0)
    x, residual, dy = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(3))
    assert_close(*both(x, residual, dy, RELU, None), tolerance=1e-5)


def test_many_chunks(monkeypatch):
    use_tiles_of(1024, monkeypatch, programs=1000)
    torch.manual_seed(0)
    x, dy = torch.randn(2, 11, 24, 13, 17)
    tiles = tiling.tiling(11 * 13 * 17, 24)
    assert tiles.chunks > tiles.block_partials > 1
    assert_close(*both(x, None, dy, RELU), tolerance=1e-5)


def test_beside_others(monkeypatch):
    """Smaller shares, as for networks side by side, change nothing but the order of sums."""
    monkeypatch.setattr(tiling, "CROWDED", dataclasses.replace(tiling.CROWDED, tile=512))
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 5, 24, 9, 9)
    with tiling.crowded():
        assert tiling.tiling(5 * 81, 24, single=False).chunks > 1
        assert_close(*both(x, residual, dy, RELU, False), tolerance=1e-5)
        assert_close(*both(x, None, dy, RELU1, True), tolerance=1e-5)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("activation", [RELU, RELU1, LINEAR])
@pytest.mark.parametrize("with_residual", [False, True])
def test_two_gradients_are_added(with_residual, activation, single):
    torch.manual_seed(0)
    x, dy, other = torch.randn(3, 5, 24, 7, 7)
    residual = torch.randn_like(x) if with_residual else None
    norm = norm_layer(24)
    expected = step(norm, x, residual, dy + other, activation, single)
    x.requires_grad_()
    inputs = [x, norm.weight, norm.bias]
    if with_residual:
        inputs.append(residual.requires_grad_())
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    y, again = _BatchNormAct.apply(
        x, norm.weight, norm.bias, residual, buffers, (0.1, 1e-5), activation, single
    )
    assert again.data_ptr() == y.data_ptr()
    found = torch.autograd.grad([y, again], inputs, [dy, other], retain_graph=True)
    names = ("dx", "dweight", "dbias", "dresidual")
    for name, value in zip(names, found, strict=False):
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)
    # either alone
    for output in (y, again):
        found = torch.autograd.grad(output, inputs, dy + other, retain_graph=True)
        for name, value in zip(names, found, strict=False):
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


def test_activations_for_two_uses():
    torch.manual_seed(0)
    norm = norm_layer(8)
    x = torch.randn(3, 8, 5, 5, requires_grad=True)
    y = batch_norm.batch_norm_act(norm, x, None, RELU)
    assert batch_norm.twice(y)[1] is y  # nobody said that no other way to a gradient is taken
    with batch_norm.gradients_added():
        one, other = batch_norm.twice(y)
    assert one is y
    assert other is not y
    assert torch.equal(one, other)
    weights = torch.randn(2, *y.shape)
    ((one * weights[0]).sum() + (other * weights[1]).sum()).backward()
    found, x.grad = x.grad, None
    z = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, True))
    (z * weights.sum(0)).sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-5)
    gone = weakref.ref(y)
    del y, one, other
    assert gone() is None  # it keeps itself alive in no way
    with batch_norm.gradients_added():
        assert batch_norm.twice(x)[1] is x


def hooked(hook):
    def touch(y):
        y.register_hook(hook)
        return y

    return touch


TOUCHES = {
    "not": lambda y: y,
    "scaled": lambda y: y.mul_(3),
    "activated": lambda y: torch.relu_(y),
    "detached": lambda y: y.detach_(),
    "hooked": hooked(lambda gradient: None),
    "cut off": hooked(lambda gradient: 0 * gradient),
    "kept": lambda y: y.retain_grad() or y,
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_what_was_touched_meanwhile_has_autograds_gradients(touch):
    torch.manual_seed(0)
    norm, scale = norm_layer(8), torch.ones(8, 1, 1, requires_grad=True)
    x = torch.randn(3, 8, 5, 5)
    weights = torch.randn(2, *x.shape)

    def gradients(layer):
        norm.zero_grad()
        scale.grad = None
        y = TOUCHES[touch](layer(x))
        with batch_norm.gradients_added():
            one, other = batch_norm.twice(y)
        assert (other is not y) == (touch == "not" and layer is fused_layer)
        ((one * weights[0] + other * weights[1]) * scale).sum().backward()
        return norm.weight.grad, scale.grad, y.grad if y.retains_grad else None

    def fused_layer(x):
        return batch_norm.batch_norm_act(norm, x, None, LINEAR)

    def plain_layer(x):
        return F.batch_norm(x, None, None, norm.weight, norm.bias, True)

    for one, other in zip(gradients(fused_layer), gradients(plain_layer), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_leaf_made_without_gradients_has_all_of_its_own():
    norm = norm_layer(8)
    with torch.no_grad():
        y = batch_norm.batch_norm_act(norm, torch.randn(3, 8, 5, 5), None, RELU)
    with batch_norm.gradients_added():
        one, other = batch_norm.twice(y.requires_grad_())
    (one + 2 * other).sum().backward()
    assert torch.equal(y.grad, torch.full_like(y, 3.0))


def test_broadcast_gradients():
    """Those of a mean over the maps are one value seen many times."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, 6, 6)
    assert_close(*both(x, None, torch.randn(4, 8, 1, 1).expand(4, 8, 6, 6), RELU))


@pytest.mark.parametrize("single", [False, True])
def test_large_means_do_not_cancel(single):
    """In float32, the squares of 3000 leave no digit to a variance of one."""
    torch.manual_seed(0)
    x = torch.randn(8, 8, 12, 12) + 3000
    naive = (x.square().mean((0, 2, 3)) - x.mean((0, 2, 3)).square()).double()
    exact = x.double().var((0, 2, 3), correction=0)
    assert ((naive - exact).abs() > 0.05).any()
    found, expected = both(x, None, torch.randn_like(x), LINEAR, single)
    for key in ("running_var", "dweight", "dx"):
        torch.testing.assert_close(found[key].double(), expected[key], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found["y"].double(), expected["y"], rtol=0, atol=2e-3)


def test_constant_channels_have_no_variance():
    x = torch.full((4, 8, 5, 5), 0.1)
    found, _ = both(x, None, torch.ones_like(x), LINEAR, False)
    assert found["y"].isfinite().all()
    norm = norm_layer(8)
    before = norm.running_var.clone()
    step(norm, x, None, torch.ones_like(x), LINEAR, False)
    torch.testing.assert_close(norm.running_var, 0.9 * before)


def test_one_kernel_equals_two():
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 4, 24, 9, 9)
    norms = [norm_layer(24), nn.BatchNorm2d(24)]
    norms[1].load_state_dict(norms[0].state_dict())
    one, two = (
        step(n, x, residual, dy, RELU, s) for n, s in zip(norms, (True, False), strict=True)
    )
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-5, atol=1e-5)


def test_repeats_bit_for_bit():
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 4, 24, 9, 9)
    norms = [norm_layer(24), nn.BatchNorm2d(24)]
    norms[1].load_state_dict(norms[0].state_dict())
    first, second = (step(n, x, residual, dy, RELU, False) for n in norms)
    for key in first:
        assert torch.equal(first[key], second[key])


def test_bfloat16():
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 4, 24, 9, 9).bfloat16()
    found, expected = both(x, residual, dy, RELU, False)
    assert found["y"].dtype == found["dx"].dtype == found["dresidual"].dtype == torch.bfloat16
    assert found["dweight"].dtype == torch.float32
    # sums are in float32; the interpreter cuts bfloat16 off where GPUs round it
    for key, tolerance in (("dweight", 1e-2), ("running_var", 1e-5), ("y", 2**-7), ("dx", 2**-6)):
        error = (found[key].double() - expected[key]).norm() / expected[key].norm()
        assert error < tolerance, key


def test_nan_and_bounds_pass_as_in_pytorch():
    x = torch.zeros(2, 4, 2, 2)
    x[0] = torch.nan
    norm = norm_layer(4).eval()
    assert batch_norm_act_eval(norm, x, None, RELU1)[0].isnan().all()
    # the derivative at the bounds is zero, as PyTorch has it
    norm = nn.BatchNorm2d(4)
    x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 4, 1, 1).clone()
    norm.bias.data.fill_(0.0)
    residual = -norm(x).detach()
    found = step(nn.BatchNorm2d(4), x, residual, torch.ones(2, 4, 1, 1), RELU, True)
    assert (found["dresidual"] == (found["y"] > 0)).all()


def test_momentum_zero_moves_nothing_but_the_counter():
    norm = norm_layer(8)
    norm.momentum = 0.0
    before = {key: value.clone() for key, value in norm.named_buffers()}
    x = torch.randn(3, 8, 5, 5)
    with torch.no_grad():
        y = batch_norm.batch_norm_act(norm, x, None, RELU)
    expected = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, training=True))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(norm.running_mean, before["running_mean"])
    assert torch.equal(norm.running_var, before["running_var"])
    assert norm.num_batches_tracked == 1


def test_autograd_knows_that_running_statistics_moved():
    norm = norm_layer(8)
    version = norm.running_mean._version
    batch_norm.batch_norm_act(norm, torch.randn(3, 8, 5, 5), None, RELU)
    assert norm.running_mean._version > version
    with torch.inference_mode():
        batch_norm.batch_norm_act(norm, torch.randn(3, 8, 5, 5), None, RELU)
    assert norm.num_batches_tracked == 2


def test_second_derivatives_are_refused():
    norm = norm_layer(8)
    x = torch.randn(3, 8, 5, 5, requires_grad=True)
    y = batch_norm.batch_norm_act(norm, x, None, RELU)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("activation", [RELU, RELU1, LINEAR])
@pytest.mark.parametrize("channels", [24, 200])
def test_evaluation(channels, activation):
    norm = norm_layer(channels).eval()
    x, residual = torch.randn(2, 3, channels, 5, 7)
    y = batch_norm_act_eval(norm, x, residual, activation)
    expected = activated(norm(x) + residual, activation)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("in_channels", "kernel"), [(3, 3), (1, 3), (16, 3), (16, 1)])
def test_folded_convolution(in_channels, kernel, layout):
    conv = nn.Conv2d(in_channels, 24, kernel, 2, 1, bias=False).to(memory_format=layout)
    norm = norm_layer(24).eval()
    folded = Folded((conv, norm), None, torch.float32)
    weight, bias = folded.weight, folded.bias
    assert weight.shape[1] % 8 == 0
    assert weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, in_channels, 7, 7)
    out = F.conv2d(pad_channels(x), weight, bias, 2, 1)
    torch.testing.assert_close(out, norm(conv(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_channels", [12, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_a_shortcut_is_folded_too(in_channels, dtype):
    """Its bias, which is large here, goes with the other convolution's."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(24, 32, 3, padding=1, bias=False), norm_layer(32).eval()
    layers = nn.Conv2d(in_channels, 32, 1, 2, bias=False), norm_layer(32).eval()
    nn.init.normal_(layers[1].bias, 10.0)
    x, residual = torch.randn(3, 24, 4, 4), torch.randn(3, in_channels, 8, 8)
    out = convolve_folded(conv, norm, x.to(dtype), residual.to(dtype), layers)
    expected = F.relu(norm(conv(x)) + layers[1](layers[0](residual)))
    assert out.dtype == dtype
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_weights_are_folded_anew_unless_somebody_keeps_them():
    """And then when they are told to be others, in the same places."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm_layer(8).eval()
    shortcut = nn.Conv2d(8, 8, 1, bias=False), norm_layer(8).eval()
    x, residual = torch.randn(2, 2, 8, 4, 4)
    folds = Folds()

    def outputs():
        return [
            convolve_folded(conv, norm, x, None),
            convolve_folded(conv, norm, x, residual, shortcut),
            convolve_folded(conv, norm, x.bfloat16(), None),
        ]

    def kept():
        with folds.used():
            return outputs()

    def same(one, other):
        return all(map(torch.equal, one, other))

    first = outputs()
    assert same(kept(), first)
    found = list(folds._known.values())
    places = [(f.weight.data_ptr(), f.bias.data_ptr()) for f in found]
    for tensor in (conv.weight, norm.bias, norm.running_var, shortcut[0].weight, shortcut[1].bias):
        tensor.data.mul_(1.5)
        before, now = kept(), outputs()
        assert not same(now, before)
        folds.refresh()
        assert same(kept(), now)
    assert list(folds._known.values()) == found
    assert [(f.weight.data_ptr(), f.bias.data_ptr()) for f in found] == places
    assert [f.weight.dtype for f in found] == [torch.float32, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("with_shortcut", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_pairs_of_pixels(with_residual, with_shortcut, monkeypatch):
    """Beside single ones, for inputs that are too small or too odd."""
    torch.manual_seed(0)
    monkeypatch.setattr(pairs, "PAIRED_ROWS", 48)
    seen = []
    monkeypatch.setattr(folding, "from_pairs", lambda x: seen.append(x) or pairs.from_pairs(x))
    conv, norm = nn.Conv2d(16, 64, 3, padding=1, bias=False), norm_layer(64).eval()
    shortcut = nn.Conv2d(16, 64, 1, bias=False), norm_layer(64).eval()
    folds = Folds()
    for shape, paired in (((2, 6, 4), True), ((3, 6, 5), False), ((2, 5, 4), False)):
        n, height, width = shape
        x = torch.randn(n, 16, height, width)
        residual = torch.randn(n, 16 if with_shortcut else 64, height, width)
        residual = residual if with_residual else None
        layers = shortcut if with_shortcut else None
        for _ in range(2):
            expected = norm(conv(x))
            if residual is not None:
                expected += shortcut[1](shortcut[0](residual)) if with_shortcut else residual
            for where in (nullcontext(), folds.used()):
                seen.clear()
                with where:
                    out = convolve_folded(conv, norm, x, residual, layers)
                assert bool(seen) == paired
                assert out.is_contiguous(memory_format=torch.channels_last)
                torch.testing.assert_close(out, F.relu(expected), rtol=1e-4, atol=1e-4)
            conv.weight.data.mul_(1.5)
            norm.bias.data.add_(1.0)
            folds.refresh()
    assert len(folds._known) == 1


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_recorded_passes_fold_once_for_all_parts(monkeypatch):
    """Each state's logits are its own, whichever came before and in whichever precision."""
    monkeypatch.setattr(forwards, "PART", 2)
    models = [create_model("resnet8", 4, in_channels=1, width=0.01).eval() for _ in range(2)]
    x = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    recorder, folded, fold = Counted(), [], folding.fold
    forward = RecordedForward(models[0], recorder)
    monkeypatch.setattr(folding, "fold", lambda *given: folded.append(given) or fold(*given))
    convolutions = sum(isinstance(m, nn.Conv2d) for m in models[0].modules())
    half = torch.bfloat16
    # the precisions one after another, and how many are known by then
    for dtype, known in ((half, 1), (torch.float16, 2), (half, 2)):
        for model in models:
            folded.clear()
            with torch.autocast("cpu", dtype):
                found = forward(model.state_dict(), x)
                assert len(folded) == convolutions * known
                expected = predict_logits(model, x, batch_size=2)
            assert len(folded) == convolutions * (known + 3)
            assert torch.equal(found, expected)
    # of six times three parts, the first in each precision was an ordinary one
    assert (recorder.recorded, recorder.replayed) == (2, 16)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("byte", [False, True])
def test_standardized_images(byte, layout):
    layer = base.InputNormalization(3, mean=[0.1, 0.2, 0.3], std=0.5)
    x = torch.randint(0, 256, (3, 3, 9, 11), dtype=torch.uint8)
    x = (x if byte else x / 255).contiguous(memory_format=layout)
    for part in (x, x[1:], x[..., 2:]):
        out = standardize(part, layer.mean, layer.std, torch.float32)
        torch.testing.assert_close(out, layer(part), rtol=1e-6, atol=1e-6)
        wide = pad_channels(out)
        assert wide.data_ptr() == out.data_ptr()
        assert torch.equal(wide[:, 3:], torch.zeros(len(part), 5, *part.shape[2:]))
        planes = standardize(part, layer.mean, layer.std, torch.float32, planar=True)
        assert planes.is_contiguous()
        assert torch.equal(planes, out)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_standardized_planes(channels):
    x = torch.randint(0, 256, (5, channels, 7, 9), dtype=torch.uint8)
    mean, std = torch.rand(2, channels) + 0.5
    planes = standardize(x, mean, std, torch.float32, planar=True)
    assert planes.is_contiguous()
    assert torch.equal(planes, standardize(x, mean, std, torch.float32))


@pytest.mark.parametrize("programs", [3, 1584])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 4), (3, 7, 2), (2, 8, 16), (3, 9, 13)])
@pytest.mark.parametrize("channels", [16, 48, 64, 128])
def test_stem(channels, shape, programs, monkeypatch):
    """Images of any size, in chunks that end anywhere in them."""
    monkeypatch.setattr(stem, "STEM_TILE", 4096)
    monkeypatch.setattr(stem, "STEM_PROGRAMS", programs)
    torch.manual_seed(0)
    n, height, width = shape
    x = torch.randn(n, height, width, 8).permute(0, 3, 1, 2)
    weight = torch.randn(channels, 3, 3, 8).permute(0, 3, 1, 2)
    for bias in (torch.randn(channels), None):
        expected = F.conv2d(x, weight, bias, padding=1)
        for relu in (True, False):
            out = convolve_images(x, weight, bias, relu=relu)
            assert out.is_contiguous(memory_format=torch.channels_last)
            wanted = F.relu(expected) if relu else expected
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("programs", [3, 1584])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 4), (3, 7, 2), (2, 8, 16), (3, 9, 13)])
@pytest.mark.parametrize(("channels", "planes"), [(16, 1), (48, 2), (16, 3), (48, 3)])
def test_stem_of_planes(channels, planes, shape, programs, monkeypatch):
    """The same, and what the other kernel says of the same images by the eight."""
    monkeypatch.setattr(stem, "STEM_TILE", 1024)
    monkeypatch.setattr(stem, "STEM_PROGRAMS", programs)
    torch.manual_seed(0)
    n, height, width = shape
    x = torch.randn(n, planes, height, width)
    weight = torch.randn(channels, 3, 3, 8).permute(0, 3, 1, 2)
    for bias, relu in ((torch.randn(channels), True), (None, False)):
        expected = F.conv2d(x, weight[:, :planes], bias, padding=1)
        out = convolve_images(x, weight, bias, relu=relu)
        assert out.is_contiguous(memory_format=torch.channels_last)
        wanted = F.relu(expected) if relu else expected
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    wide = convolve_images(stem_images(x), weight, None)
    torch.testing.assert_close(out, wide, rtol=1e-5, atol=1e-5)


def test_images_stay_planes_where_nothing_goes_back():
    x = torch.randn(2, 3, 4, 4)
    assert stem_images(x).shape == (2, 8, 4, 4)
    with torch.no_grad():
        assert stem_images(x) is x
        assert stem_images(x[:, :1].contiguous()).shape[1] == 1
        for other in (x[:, :1], x.to(memory_format=torch.channels_last), torch.randn(2, 4, 4, 4)):
            images = stem_images(other)
            assert images.shape == (2, 8, 4, 4)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(images[:, : other.shape[1]], other)


@pytest.mark.parametrize("planar", [False, True])
def test_stem_lets_nan_pass(planar):
    x = torch.full((1, 3, 3, 8), torch.nan).permute(0, 3, 1, 2)
    x = x[:, :3].contiguous() if planar else x
    weight = torch.randn(16, 3, 3, 8).permute(0, 3, 1, 2)
    for relu in (True, False):
        assert convolve_images(x, weight, relu=relu).isnan().all()


@pytest.fixture
def side(monkeypatch):
    """A stream for weight gradients, which on the CPU is none."""
    main = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return SimpleNamespace(wait_stream=lambda other: None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("in_channels", "channels", "shape"),
    [(3, 16, (5, 7)), (1, 48, (1, 4)), (8, 64, (8, 8)), (3, 128, (9, 3))],
)
@pytest.mark.parametrize("of_images", [False, True])
def test_stem_in_training(side, of_images, in_channels, channels, shape, dtype, layout):
    """With the weight gradient aside or not, and with that of the images or without."""
    torch.manual_seed(0)
    conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False).to(memory_format=layout)
    images, dy = torch.randn(3, in_channels, *shape), torch.randn(3, channels, *shape)

    def step(convolve):
        x = images.to(dtype, copy=True).requires_grad_(of_images)
        conv.weight.grad = None
        y = convolve(conv, x)
        y.backward(dy.to(dtype))
        join()
        assert conv.weight.grad.stride() == conv.weight.stride()
        return (y.detach(), conv.weight.grad, *([x.grad] if of_images else []))

    expected = step(lambda conv, x: F.conv2d(x, conv.weight.to(dtype), padding=1))
    ways = [step(lambda conv, x: convolve_stem(conv, pad_channels(x)))]
    with overlapping(side):
        ways.append(step(lambda conv, x: convolve_overlapped(conv, pad_channels(x), stem=True)))
    # the interpreter cuts bfloat16 off where GPUs round it
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-5
    for found in ways:
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert (one - other).norm() <= tolerance * other.norm()


def test_stems_in_training_take_the_kernel(side, monkeypatch):
    """Those in half precision and without bias, if there are any images."""
    called = []

    def noted(*args, **options):
        called.append(args)
        return convolve_images(*args, **options)

    for module in (stem, overlap):
        monkeypatch.setattr(module, "convolve_images", noted)
    conv, x = nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.randn(2, 3, 4, 4)

    def count(conv, x, dtype=torch.bfloat16):
        called.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            assert fused._convolve(conv, x, dtype).shape == (len(x), conv.out_channels, 4, 4)
        return len(called)

    for where in (nullcontext(), overlapping(side)):
        with where:
            assert count(conv, x) == 1
            assert count(conv, x[:0]) == 0
            assert count(conv, x, torch.float32) == 0
            assert count(nn.Conv2d(3, 16, 3, padding=1), x) == 0
            assert count(nn.Conv2d(3, 24, 3, padding=1, bias=False), x) == 0
    with torch.no_grad():
        assert count(conv, x) == 1
    with pytest.raises(RuntimeError, match="channels"):
        fused._convolve(nn.Conv2d(8, 16, 3, padding=1, bias=False), x.bfloat16(), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stem_with_batch_norm_in_half_precision(dtype):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 32, 3, padding=1, bias=False), norm_layer(32).eval()
    images = torch.randint(0, 256, (3, 3, 6, 10), dtype=torch.uint8)
    x = standardize(images, torch.tensor(0.5), torch.tensor(0.25), dtype)
    assert is_stem(conv)
    out = convolve_folded(conv, norm, x, None)
    assert out.dtype == dtype
    expected = F.relu(norm(conv(x.float())))
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (2e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_grouped_1x1_convolutions_are_products(groups, layout):
    torch.manual_seed(0)
    conv = nn.Conv2d(12, 18, 1, groups=groups, bias=False).to(memory_format=layout)
    inputs = [torch.randn(2, 12, 3, 5).bfloat16().requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0])
    found = fused._convolve(conv, inputs[0], torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    found.float().square().sum().backward()
    gradient, conv.weight.grad = conv.weight.grad, None
    expected = F.conv2d(inputs[1].float(), conv.weight.bfloat16().float(), groups=groups)
    expected.square().sum().backward()
    for one, other in (
        (found, expected),
        (inputs[0].grad, inputs[1].grad),
        (gradient, conv.weight.grad),
    ):
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(8, 8, 1, groups=8, bias=False),  # a scale for each channel
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.Conv2d(8, 8, 1, stride=2, groups=2, bias=False),
        nn.Conv2d(8, 8, 1, padding=1, groups=2, bias=False),
        nn.Conv2d(8, 8, 1, groups=2),
        nn.Conv2d(8, 8, 1, bias=False),
    ],
)
def test_other_convolutions_are_no_products(conv):
    assert not fused._is_grouped_pointwise(conv)


@pytest.fixture
def _fused_on_the_cpu(monkeypatch):
    """The paths of CUDA devices, with cuDNN's operations by others."""

    def relu(x, weight, bias, *options):
        return F.relu(F.conv2d(x, weight, bias, *options))

    def add_relu(x, weight, z, alpha, bias, *options):
        return F.relu(F.conv2d(x, weight, bias, *options) + alpha * z)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", add_relu)
    for module in (fused, base):
        monkeypatch.setattr(module, "fusable", lambda x: not fused._plain.get())


@pytest.mark.usefixtures("_fused_on_the_cpu")
@pytest.mark.parametrize(
    ("name", "half"),
    [("resnet8", False), ("resnet8", True), ("mobilenetv2", False), ("shufflenet", False)],
)
def test_networks(name, half, monkeypatch):
    """The whole network, fused, does what its modules do in training and both evaluations."""
    use_tiles_of(8192, monkeypatch)
    torch.manual_seed(0)
    model = create_model(name, 4, width=0.1)
    x = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8)
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def everything():
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

    with batch_norm.gradients_added():
        got = everything()
    with fused.plain_layers():
        expected = everything()
    # bfloat16 has 8 bits, which the interpreter cuts off; its gradients are mostly noise here
    tolerance = 0.1 if half else 1e-3
    for key, value in expected.items():
        if not (half and key == "gradient"):
            # means of zero but for rounding, after layers without bias, have no relative error
            error = (got[key] - value).double().norm() / value.double().norm().clamp_min(0.01)
            assert error < tolerance, f"{key} is off by {error}"


@pytest.mark.usefixtures("_fused_on_the_cpu")
@pytest.mark.parametrize(
    ("name", "options", "statistics", "seen"),
    [
        ("resnet8", {}, "running", [3]),
        ("resnet8", {}, "batch", [3]),
        ("resnet8", {"in_channels": 1}, "running", [1]),
        ("resnet8", {"in_channels": 4}, "running", [8]),
        ("resnet8", {"norm": "group"}, "running", []),
        ("mobilenetv2", {}, "running", [3]),
        ("shufflenet", {}, "running", []),  # whose 24 channels the kernel is not for
    ],
)
def test_images_are_planes_for_some_stems(name, options, statistics, seen, monkeypatch):
    """Those of a kernel of ours, when nothing is trained, and it reads them as they are."""
    torch.manual_seed(0)
    model = create_model(name, 4, **options)
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm))
    upper = 6.0 if name == "mobilenetv2" else None
    x = torch.randint(0, 256, (2, conv.in_channels, 4, 4), dtype=torch.uint8)
    made, read = [], []

    def standardized(*given, **named):
        made.append(standardize(*given, **named))
        return made[-1]

    def convolved(images, *given, **named):
        read.append(images)
        return convolve_images(images, *given, **named)

    def stem_alone(self, images):
        return fused.conv_norm_act(conv, norm, images, upper=upper)

    monkeypatch.setattr(type(model), "feature_map", stem_alone)
    monkeypatch.setattr(base, "standardize", standardized)
    for module in (stem, folding):
        monkeypatch.setattr(module, "convolve_images", convolved)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad(), evaluating(model, statistics):
            found = model.features(x)
            assert made[0].is_contiguous() == (seen in ([1], [3]))
            assert all(images.data_ptr() == made[0].data_ptr() for images in read)
            assert [images.shape[1] for images in read] == seen
            with monkeypatch.context() as patched:
                patched.setattr(base, "reads_planes", lambda *given: False)
                expected = model.features(x)
        model.features(x)
    assert not any(images.is_contiguous() for images in made[1:])
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_a_network_folds_its_shortcuts(monkeypatch):
    model, seen = create_model("resnet8", 4, width=0.1).eval(), []
    folded = fused.convolve_folded
    monkeypatch.setattr(
        fused, "convolve_folded", lambda *given: seen.append(len(given) == 5) or folded(*given)
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8))
    # the stem, then two convolutions a stage, of which the last three stages have a shortcut
    assert seen == [False, False, False, False, True, False, True, False, True]


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_a_network_adds_its_gradients_as_autograd_does(monkeypatch):
    use_tiles_of(8192, monkeypatch)
    torch.manual_seed(0)
    model = create_model("resnet8", 4, width=0.1).train()
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def gradients():
        model.load_state_dict(start)
        model.zero_grad()
        model(x).logsumexp(1).sum().backward()
        return [p.grad for p in model.parameters()]

    expected = gradients()
    with batch_norm.gradients_added():
        found = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_weights_are_cast_at_once(side, monkeypatch):
    """By one call, in training alone; only the stem's, which is padded, is on its own."""
    use_tiles_of(8192, monkeypatch)
    torch.manual_seed(0)
    model = create_model("resnet8", 4, width=0.25).to(memory_format=torch.channels_last).train()
    x = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8)
    calls, widened = [], []
    cast_all, widen = fused.cast_all, stem.widen
    monkeypatch.setattr(fused, "cast_all", lambda w, dtype: calls.append(w) or cast_all(w, dtype))
    for module in (stem, overlap):
        monkeypatch.setattr(module, "widen", lambda w, *to: widened.append(w) or widen(w, *to))

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(x).logsumexp(1).float().sum().backward()
        join()
        return [p.grad for p in model.parameters()]

    count = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    found = gradients()
    assert [len(weights) for weights in calls] == [count - 1]
    assert len(widened) == 1
    with overlapping(side):
        aside = gradients()
    assert [len(weights) for weights in calls] == [count - 1] * 2
    assert len(widened) == 2
    monkeypatch.setattr(fused, "_is_castable", lambda conv: False)
    expected = gradients()
    with overlapping(side):
        expected_aside = gradients()
    for one, other in [(found, expected), (aside, expected_aside)]:
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


class OwnNormalization(base.InputNormalization):
    def forward(self, x):
        return super().forward(x)


@pytest.mark.usefixtures("_fused_on_the_cpu")
@pytest.mark.parametrize("normalize", [nn.Identity(), OwnNormalization()])
def test_images_may_be_standardised_otherwise(normalize, monkeypatch):
    use_tiles_of(8192, monkeypatch)
    model = create_model("resnet8", 4, width=0.25).eval()
    model.normalize = normalize
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
        with fused.plain_layers():
            torch.testing.assert_close(found, model(x), rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_weights_are_not_cast_where_nothing_is_trained(monkeypatch):
    use_tiles_of(8192, monkeypatch)
    monkeypatch.setattr(fused, "cast_all", None)  # which is not called
    x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    model = create_model("resnet8", 4, width=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            model.train()(x)
            model.eval()(x)
        model.eval()(x)
        create_model("resnet8", 4, width=0.1, norm="group").train()(x)
    model.train()(x)  # in 32 bits


@pytest.mark.usefixtures("_fused_on_the_cpu")
def test_networks_with_weight_gradients_aside(side, monkeypatch):
    """All convolutions of the network, with shortcuts, give the gradients that they give inline."""
    use_tiles_of(8192, monkeypatch)
    torch.manual_seed(0)
    model = create_model("resnet8", 4, width=0.25).to(memory_format=torch.channels_last).train()
    x = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        outputs.logsumexp(1).float().sum().backward()
        missing = [m for m in convolutions if m.weight.grad is None]
        join()
        return [p.grad for p in model.parameters()], missing

    expected, missing = gradients()
    assert not missing
    with overlapping(side):
        found, missing = gradients()
    assert missing == convolutions
    for parameter, one, other in zip(model.parameters(), found, expected, strict=True):
        assert one.stride() == parameter.stride()
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))
