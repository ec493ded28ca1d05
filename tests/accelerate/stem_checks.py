"""Standardized images and the stem, with kernels in Triton's interpreter."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerate import interpreted  # noqa: F401  isort: skip  before any kernel is defined

from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution import image_stem, weight_gradients
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR, RELU
from fedaux_pl.accelerate.convolution.image_stem import (
    convolve_images,
    pad_channels,
    standardize,
)
from fedaux_pl.accelerate.convolution.weight_gradients import (
    convolve,
    join_weight_gradients,
    weight_gradients_on,
)
from fedaux_pl.models.image_classifier import InputNormalization
from tests.accelerate.convolution_helpers import activate, create_stream


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("byte", "layout"), [(False, torch.contiguous_format), (True, torch.channels_last)]
)
def test_standardized_images(byte, layout):
    """More than one program of 256 pixels, the last with a partial block."""
    layer = InputNormalization(3, mean=[0.1, 0.2, 0.3], std=0.5)
    x = torch.randint(0, 256, (3, 3, 9, 11), dtype=torch.uint8)
    x = (x if byte else x / 255).contiguous(memory_format=layout)
    for part in (x, x[1:], x[..., 2:]):
        out = standardize(part, layer.mean, layer.std, torch.float32)
        torch.testing.assert_close(out, layer(part), rtol=1e-6, atol=1e-6)
        padded = pad_channels(out)
        assert padded.data_ptr() == out.data_ptr()
        assert torch.equal(padded[:, 3:], torch.zeros(len(part), 5, *part.shape[2:]))


# an image of one pixel; chunks that end inside an image and a partial last tile
@pytest.mark.parametrize(
    ("shape", "programs", "channels"), [((1, 1, 1), 1584, 16), ((3, 5, 7), 3, 48)]
)
def test_stem(shape, programs, channels, monkeypatch):
    monkeypatch.setattr(image_stem, "STEM_TILE", 1024)
    monkeypatch.setattr(image_stem, "STEM_PROGRAMS", programs)
    n, height, width = shape
    x = torch.randn(n, height, width, 8).permute(0, 3, 1, 2)
    weight = torch.randn(channels, 3, 3, 8).permute(0, 3, 1, 2)
    bias = torch.randn(channels)
    for given, activation in ((bias, RELU), (bias, LINEAR), (None, LINEAR)):
        out = convolve_images(x, weight, given, activation)
        assert out.is_contiguous(memory_format=torch.channels_last)
        expected = activate(F.conv2d(x, weight, given, padding=1), activation)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_stem_propagates_nan():
    x = torch.full((1, 3, 3, 8), torch.nan).permute(0, 3, 1, 2)
    weight = torch.randn(16, 3, 3, 8).permute(0, 3, 1, 2)
    for activation in (RELU, LINEAR):
        assert convolve_images(x, weight, None, activation).isnan().all()


@pytest.mark.parametrize(
    ("in_channels", "channels", "shape", "dtype", "layout", "of_images"),
    [
        (3, 16, (5, 7), torch.bfloat16, torch.channels_last, True),
        (1, 48, (1, 4), torch.float32, torch.contiguous_format, False),
        (8, 16, (4, 4), torch.bfloat16, torch.contiguous_format, False),
    ],
)
def test_stem_in_training(in_channels, channels, shape, dtype, layout, of_images, monkeypatch):
    """With the weight gradient on either stream, with the gradient of the images or without."""
    stream = create_stream(monkeypatch)
    conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False).to(memory_format=layout)
    images, dy = torch.randn(3, in_channels, *shape), torch.randn(3, channels, *shape)

    def step(convolve):
        x = images.to(dtype, copy=True).requires_grad_(of_images)
        conv.weight.grad = None
        y = convolve(conv, x)
        y.backward(dy.to(dtype))
        join_weight_gradients()
        assert conv.weight.grad.stride() == conv.weight.stride()
        return (y.detach(), conv.weight.grad, *([x.grad] if of_images else []))

    def convolve_padded(conv, x):
        return convolve(conv, pad_channels(x), stem=True)

    expected = step(lambda conv, x: F.conv2d(x, conv.weight.to(dtype), padding=1))
    steps = [step(convolve_padded)]
    with weight_gradients_on(stream):
        steps.append(step(convolve_padded))
    # the interpreter truncates to bfloat16 where GPUs round
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-5
    for found in steps:
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert (one - other).norm() <= tolerance * other.norm()


def test_stems_in_training_use_the_kernel(monkeypatch):
    """Those in half precision and without bias, if there are any images."""
    called = []

    monkeypatch.setattr(
        weight_gradients,
        "convolve_images",
        lambda *args: called.append(args) or convolve_images(*args),
    )
    conv, x = nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.randn(2, 3, 4, 4)

    def count(conv, x, dtype=torch.bfloat16):
        called.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out, _ = fused._convolve(conv, x, dtype)
            assert out.shape == (len(x), conv.out_channels, 4, 4)
        return len(called)

    for context in (nullcontext(), weight_gradients_on(create_stream(monkeypatch))):
        with context:
            assert count(conv, x) == 1
            assert count(conv, x[:0]) == 0
            assert count(conv, x, torch.float32) == 0
            assert count(nn.Conv2d(3, 16, 3, padding=1), x) == 0
            assert count(nn.Conv2d(3, 20, 3, padding=1, bias=False), x) == 0
    with torch.no_grad():
        assert count(conv, x) == 1
    with pytest.raises(RuntimeError, match="channels"):
        fused._convolve(nn.Conv2d(8, 16, 3, padding=1, bias=False), x.bfloat16(), torch.bfloat16)
