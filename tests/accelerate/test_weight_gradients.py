"""Weight gradients on a side stream: the same gradients, and which stream waits for which."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution.image_stem import pad_channels
from fedaux_pl.accelerate.convolution.weight_gradients import (
    convolve,
    join_weight_gradients,
    side_stream_for,
    weight_gradients_on,
)
from tests.accelerate.convolution_helpers import record_streams
from tests.accelerate.pairwise import pairwise


@pytest.fixture
def streams(monkeypatch):
    return record_streams(monkeypatch)


def conv_layer(in_channels=16, layout=torch.channels_last, **options):
    options = {"kernel_size": 3, "padding": 1, "bias": False, **options}
    return nn.Conv2d(in_channels, 8, **options).to(memory_format=layout)


def gradients(conv, x, convolve):
    """Output and gradients of x and the weight, for the loss sum(y ** 2)."""
    x, conv.weight.grad = x.clone().requires_grad_(), None
    y = convolve(conv, x)
    y.float().square().sum().backward()
    join_weight_gradients()
    return y.detach(), x.grad, conv.weight.grad


def convolve_on_side(conv, x):
    return convolve(conv, pad_channels(x), stem=False)


def plain(conv, x):
    weight = conv.weight.to(x.dtype)
    return torch.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation)


@pytest.mark.parametrize(
    ("options", "layout", "dtype"),
    pairwise(
        [
            {},
            {"in_channels": 3},  # padded
            {"kernel_size": 1, "stride": 2, "padding": 0},
            {"padding": 2, "dilation": 2},
        ],
        [torch.contiguous_format, torch.channels_last],
        [torch.bfloat16, torch.float64],
    ),
)
def test_gradients_are_autograds(streams, dtype, options, layout):
    torch.manual_seed(0)
    conv = conv_layer(layout=layout, **options)
    x = torch.randn(3, conv.in_channels, 7, 9).to(dtype, memory_format=torch.channels_last)
    expected = gradients(conv, x, plain)
    with weight_gradients_on(streams[0]):
        assert side_stream_for(conv)
        found = gradients(conv, x, convolve_on_side)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)
    assert found[2].dtype == torch.float32
    assert found[2].stride() == conv.weight.stride()  # as fused optimizers need


def test_streams_wait_for_each_other(streams):
    side, events = streams
    conv = conv_layer()
    x = torch.randn(2, 16, 5, 5)
    with weight_gradients_on(side):
        y = convolve_on_side(conv, x)
        join_weight_gradients()
        assert events == []  # a capture must not wait for a stream without work
        y.sum().backward()
        assert events == ["side waits for main", "on side", "off side"]
        assert conv.weight.grad is None
        join_weight_gradients()
        assert events[3:] == ["main waits for side"]
        assert conv.weight.grad is not None
        join_weight_gradients()
        assert len(events) == 4


def test_other_contributions_are_added_after_the_wait(streams):
    """A layer that is used twice, a penalty, and an earlier gradient."""
    torch.manual_seed(0)
    conv, x = conv_layer(), torch.randn(2, 16, 5, 5)
    before = torch.randn_like(conv.weight)

    def gradient(convolve):
        conv.weight.grad = before.clone()
        loss = convolve(conv, x).square().sum() + convolve(conv, 2 * x).sum()
        (loss + conv.weight.square().sum()).backward()
        join_weight_gradients()
        return conv.weight.grad

    expected = gradient(plain)
    with weight_gradients_on(streams[0]):
        found = gradient(convolve_on_side)
    torch.testing.assert_close(found, expected)
    assert found.stride() == conv.weight.stride()


def raise_after(_):
    raise ValueError("something else")


def test_gradients_that_are_not_joined_are_an_error(streams):
    conv = conv_layer()
    with (
        pytest.raises(RuntimeError, match="call join_weight_gradients"),
        weight_gradients_on(streams[0]),
    ):
        convolve_on_side(conv, torch.randn(2, 16, 5, 5)).sum().backward()
    with (
        pytest.raises(ValueError, match="something else"),
        weight_gradients_on(streams[0]),
    ):  # not hidden
        raise_after(convolve_on_side(conv, torch.randn(2, 16, 5, 5)).sum().backward())


def test_autograd_grad_is_an_error(streams):
    conv, x = conv_layer(), torch.randn(2, 16, 5, 5)
    with pytest.raises(RuntimeError, match="not have been used"), weight_gradients_on(streams[0]):
        torch.autograd.grad(convolve_on_side(conv, x).sum(), conv.weight)


def test_which_layers_use_the_side_stream(streams):
    conv, frozen = conv_layer(), conv_layer().requires_grad_(False)
    hooked, watched, computed = conv_layer(), conv_layer(), conv_layer()
    hooked.weight.register_hook(lambda gradient: None)
    watched.weight.register_post_accumulate_grad_hook(lambda weight: None)
    weight = computed.weight * 2
    del computed.weight
    computed.weight = weight
    assert not side_stream_for(conv)
    with weight_gradients_on(streams[0]):
        assert side_stream_for(conv)
        for other in (
            frozen,
            hooked,
            watched,
            computed,
            conv_layer(bias=True),
            conv_layer(padding="same"),
        ):
            assert not side_stream_for(other)
        with torch.no_grad():
            assert not side_stream_for(conv)
    assert not side_stream_for(conv)


def test_full_precision_and_grouped_layers_stay_on_the_main_stream(streams, monkeypatch):
    called = []
    monkeypatch.setattr(
        fused,
        "convolve",
        lambda conv, x, **_: called.append(conv) or plain(conv, x),
    )
    conv, grouped, x = conv_layer(), conv_layer(groups=2), torch.randn(2, 16, 5, 5)
    with weight_gradients_on(streams[0]):
        fused._convolve(conv, x, torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            fused._convolve(grouped, x, torch.bfloat16)
            assert not called
            fused._convolve(conv, x, torch.bfloat16)
    assert called == [conv]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("layer", "dtype", "of_images", "on_side_stream"),
    pairwise(
        [(3, 64, 64, 32, 32), (1, 16, 1, 28, 28), (3, 48, 3, 33, 17), (8, 128, 5, 7, 9)],
        [torch.bfloat16, torch.float16],
        [False, True],
        [False, True],
    ),
)
def test_cuda_stem_in_training(layer, dtype, of_images, on_side_stream):
    """Forward and weight gradient are as exact as cuDNN's for the same rounded inputs."""
    torch.manual_seed(0)
    in_channels, channels, n, *sides = layer
    conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False).cuda()
    conv.to(memory_format=torch.channels_last)
    images = torch.randn(n, in_channels, *sides, device="cuda").to(dtype)
    dy = torch.randn(n, channels, *sides, device="cuda").to(dtype)

    def step(convolve, kind):
        x = images.to(kind, copy=True).requires_grad_(of_images)
        conv.weight.grad = None
        y = convolve(conv, x)
        y.backward(dy.to(kind))
        join_weight_gradients()
        found = [y.detach(), conv.weight.grad, *([x.grad] if of_images else [])]
        return [one.double() for one in found]

    def rounded(conv, x):
        weight = conv.weight.to(dtype).to(x.dtype)
        return torch.conv2d(x, weight, None, padding=1)

    exact, theirs = step(rounded, torch.float64), step(rounded, dtype)
    with weight_gradients_on(torch.cuda.Stream()) if on_side_stream else nullcontext():
        ours = step(lambda conv, x: fused._convolve(conv, x, dtype)[0], dtype)
    assert conv.weight.grad.stride() == conv.weight.stride()
    rounding = torch.finfo(dtype).eps
    for found, other, expected in zip(ours, theirs, exact, strict=True):
        assert (found - expected).norm() <= rounding * expected.norm()
        assert (found - other).norm() <= rounding * expected.norm()
    # no value is off by more than its own rounding and that of a sum in float32
    error, size = (ours[0] - exact[0]).abs(), exact[0].abs()
    assert (error <= rounding * size + 1e-5 * size.max()).all()
