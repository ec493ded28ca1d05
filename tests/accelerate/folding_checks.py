"""Convolutions with BatchNorm folded in, with kernels in Triton's interpreter."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate import speed_up
from fedaux_pl.accelerate.context import using
from fedaux_pl.accelerate.convolution import folding
from fedaux_pl.accelerate.convolution.conv_norm_act import conv_norm_act
from fedaux_pl.accelerate.convolution.folding import FoldCache, FoldedConvolution, convolve_folded
from fedaux_pl.accelerate.convolution.image_stem import is_stem, pad_channels, standardize
from fedaux_pl.accelerate.recording.captured_predictions import CapturedPredictor
from fedaux_pl.engine import inference, predict_logits
from fedaux_pl.models import create_model
from tests.accelerate.convolution_helpers import create_norm, fold_in_pytorch, fuse_on_cpu
from tests.accelerate.recorders import FakeRecorder


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    fuse_on_cpu(monkeypatch)
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("in_channels", "kernel", "layout"),
    [
        (3, 3, torch.contiguous_format),  # padded to 8 channels
        (1, 3, torch.channels_last),
        (144, 3, torch.contiguous_format),  # more than one block of a program
        (16, 1, torch.channels_last),
    ],
)
def test_folded_convolution(in_channels, kernel, layout):
    conv = nn.Conv2d(in_channels, 8, kernel, 2, 1, bias=False).to(memory_format=layout)
    norm = create_norm(8).eval()
    folded = FoldedConvolution((conv, norm), None, torch.float32)
    assert folded.weight.shape[1] % 8 == 0
    assert folded.weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, in_channels, 5, 5)
    out = F.conv2d(pad_channels(x), folded.weight, folded.bias, 2, 1)
    torch.testing.assert_close(out, norm(conv(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("in_channels", "dtype"), [(12, torch.float32), (16, torch.bfloat16)])
def test_folded_shortcut(in_channels, dtype):
    """Its bias, which is large here, is added to that of the other convolution."""
    conv, norm = nn.Conv2d(24, 16, 3, padding=1, bias=False), create_norm(16).eval()
    layers = nn.Conv2d(in_channels, 16, 1, 2, bias=False), create_norm(16).eval()
    nn.init.normal_(layers[1].bias, 10.0)
    x, residual = torch.randn(3, 24, 4, 4), torch.randn(3, in_channels, 8, 8)
    out = convolve_folded(conv, norm, x.to(dtype), residual.to(dtype), layers)
    expected = F.relu(norm(conv(x)) + layers[1](layers[0](residual)))
    assert out.dtype == dtype
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folded_stem(dtype):
    conv, norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), create_norm(16).eval()
    images = torch.randint(0, 256, (3, 3, 4, 6), dtype=torch.uint8)
    x = standardize(images, torch.tensor(0.5), torch.tensor(0.25), dtype)
    assert is_stem(conv)
    out = convolve_folded(conv, norm, x, None)
    assert out.dtype == dtype
    expected = F.relu(norm(conv(x.float())))
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (2e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("nchw", [False, True])
def test_folded_stem_with_relu6(nchw, monkeypatch):
    fold_in_pytorch(monkeypatch)
    conv, norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), create_norm(16).eval()
    images = torch.randint(0, 256, (3, 3, 4, 6), dtype=torch.uint8)
    x = standardize(images, torch.tensor(0.5), torch.tensor(0.25), torch.bfloat16, nchw=nchw)
    expected = F.hardtanh(norm(conv(x.float())), 0.0, 0.5)
    assert 0 < (expected == 0.5).float().mean() < 1
    monkeypatch.setattr(nn.BatchNorm2d, "forward", None)  # calling it would fail
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = conv_norm_act(conv, norm, x, upper=0.5)
    assert (out.float() - expected).norm() < 2e-2 * expected.norm()


def test_only_an_active_cache_reuses_folded_weights(monkeypatch):
    """``refresh`` folds the current weights, into the same tensors."""
    fold_in_pytorch(monkeypatch)
    conv, norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), create_norm(8).eval()
    shortcut = nn.Conv2d(8, 8, 1, bias=False), create_norm(8).eval()
    x, residual = torch.randn(2, 2, 8, 4, 4)
    cache = FoldCache()

    def outputs():
        return [
            convolve_folded(conv, norm, x, None),
            convolve_folded(conv, norm, x, residual, shortcut),
            convolve_folded(conv, norm, x.bfloat16(), None),
        ]

    def cached():
        with using(folds=cache):
            return outputs()

    def same(one, other):
        return all(map(torch.equal, one, other))

    first = outputs()
    assert same(cached(), first)
    found = list(cache._entries.values())
    addresses = [(f.weight.data_ptr(), f.bias.data_ptr()) for f in found]
    for tensor in (conv.weight, norm.bias, norm.running_var, shortcut[0].weight, shortcut[1].bias):
        tensor.data.mul_(1.5)
        before, now = cached(), outputs()
        assert not same(now, before)
        cache.refresh()
        assert same(cached(), now)
    assert list(cache._entries.values()) == found
    assert [(f.weight.data_ptr(), f.bias.data_ptr()) for f in found] == addresses
    assert [f.weight.dtype for f in found] == [torch.float32, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("with_shortcut", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_pairs_of_pixels(with_residual, with_shortcut, monkeypatch):
    """Small inputs and odd widths are convolved as single pixels, with the same cache."""
    fold_in_pytorch(monkeypatch)
    monkeypatch.setattr(folding, "MIN_PAIRED_PIXELS", 48)
    seen = []
    view = folding.view_as_pixels
    monkeypatch.setattr(folding, "view_as_pixels", lambda x: seen.append(x) or view(x))
    conv, norm = nn.Conv2d(16, 64, 3, padding=1, bias=False), create_norm(64).eval()
    shortcut = nn.Conv2d(16, 64, 1, bias=False), create_norm(64).eval()
    cache = FoldCache()
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
            for context in (nullcontext(), using(folds=cache)):
                seen.clear()
                with context:
                    out = convolve_folded(conv, norm, x, residual, layers)
                assert bool(seen) == paired
                assert out.is_contiguous(memory_format=torch.channels_last)
                torch.testing.assert_close(out, F.relu(expected), rtol=1e-4, atol=1e-4)
            conv.weight.data.mul_(1.5)
            norm.bias.data.add_(1.0)
            cache.refresh()
    assert len(cache._entries) == 1


def test_captured_passes_fold_once_for_all_parts(monkeypatch):
    """The logits do not depend on the state or the precision of the pass before."""
    fold_in_pytorch(monkeypatch)
    monkeypatch.setattr(inference, "CAPTURED_BATCH_SIZE", 2)
    models = [
        speed_up(create_model("resnet8", 4, in_channels=1, width=0.01)).eval() for _ in range(2)
    ]
    x = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    recorder, folded, fold = FakeRecorder(), [], folding.fold_batch_norm
    forward = CapturedPredictor(models[0], recorder)
    monkeypatch.setattr(
        folding, "fold_batch_norm", lambda *given: folded.append(given) or fold(*given)
    )
    convolutions = sum(isinstance(m, nn.Conv2d) for m in models[0].modules())
    half = torch.bfloat16
    # The precisions in order, how many have been seen by then, and how often the first of the
    # models folds for each: a new precision folds for the pass that compiles, and again after it.
    for dtype, known, times in ((half, 1, 2), (torch.float16, 2, 2), (half, 2, 1)):
        for model in models:
            folded.clear()
            count = convolutions * known * (times if model is models[0] else 1)
            with torch.autocast("cpu", dtype):
                found = forward.predict(model.state_dict(), x)
                assert len(folded) == count
                expected = predict_logits(model, x, batch_size=2)
            assert len(folded) == count + 3 * convolutions
            assert torch.equal(found, expected)
    # of six times three parts, the first in each precision was not captured
    assert (len(recorder.captured), recorder.replayed) == (2, 16)
