"""Helpers of the checks of convolution kernels; importing them defines no kernel."""

from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.accelerate import eligibility
from fedaux_pl.accelerate.convolution import batch_norm, depthwise, networks, pointwise_products
from fedaux_pl.accelerate.convolution import conv_norm_act as fused
from fedaux_pl.accelerate.convolution.batch_norm import LINEAR
from fedaux_pl.accelerate.convolution.image_stem import pad_channels
from fedaux_pl.models import create_model


def use_small_tiles(monkeypatch, tile_size=256, programs=4):
    """Makes small tensors have several chunks and tiles: with 32 channels, tiles of 8 rows."""
    monkeypatch.setattr(batch_norm, "TILE_SIZE", tile_size)
    for module in (batch_norm, pointwise_products):
        monkeypatch.setattr(module, "PROGRAMS", programs)


def use_one_program(monkeypatch):
    """Makes a kernel one program with few tiles: the interpreter's time grows with programs."""
    use_small_tiles(monkeypatch, tile_size=8192, programs=1)
    monkeypatch.setattr(batch_norm, "BLOCK_CHANNELS", 1024)
    monkeypatch.setattr(depthwise, "BLOCK_CHANNELS", 1024)
    for tile in ("TILE", "STRIDE_1_TILE"):
        monkeypatch.setattr(depthwise, tile, 2**15)


def use_small_chunks(monkeypatch, block_channels):
    """Makes depthwise kernels have tiles of few columns, and chunks of up to three tiles."""
    monkeypatch.setattr(depthwise, "BLOCK_CHANNELS", block_channels)
    for tile in ("TILE", "STRIDE_1_TILE"):
        monkeypatch.setattr(depthwise, tile, 64)
    for programs in ("PROGRAMS", "BACKWARD_PROGRAMS"):
        monkeypatch.setattr(depthwise, programs, 4)


def fold_in_pytorch(monkeypatch):
    """Replaces the kernel of ``fold_batch_norm``, which has checks of its own."""

    @torch.no_grad()
    def fold(conv, norm, dtype, bias_dtype=None):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weight = pad_channels(conv.weight * scale[:, None, None, None])
        weight = weight.to(dtype, memory_format=torch.channels_last)
        return weight, (norm.bias - norm.running_mean * scale).to(bias_dtype or dtype)

    for module in (fused, networks):
        monkeypatch.setattr(module, "fold_batch_norm", fold)


def fuse_on_cpu(monkeypatch):
    """Makes the CPU take the paths of CUDA devices, with PyTorch in place of cuDNN's kernels."""

    def relu(x, weight, bias, *geometry):
        return F.relu(F.conv2d(x, weight, bias, *geometry))

    def add_relu(x, weight, z, alpha, bias, *geometry):
        return F.relu(F.conv2d(x, weight, bias, *geometry) + alpha * z)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", add_relu)
    monkeypatch.setattr(eligibility, "has_kernels", lambda device: True)


def record_units(monkeypatch, name):
    """The units that a function of ``networks`` computes from now on, by its name."""
    units, compute = [], getattr(networks, name)
    monkeypatch.setattr(networks, name, lambda unit, x: units.append(unit) or compute(unit, x))
    return units


def create_stream(monkeypatch):
    """A side stream for weight gradients; on the CPU nothing runs on it."""
    main = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return SimpleNamespace(wait_stream=lambda other: None)


class Stream(SimpleNamespace):
    """A stream that records what it waits for."""

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


def record_streams(monkeypatch):
    """A side stream, and the events of it and of the main stream."""
    events = []
    main = Stream(name="main", events=events)

    @contextmanager
    def entered(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: main)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    return Stream(name="side", events=events), events


def activate(z, activation):
    """The activation in PyTorch."""
    return z if activation == LINEAR else z.clamp(0.0, activation.upper)


def create_norm(channels):
    """A BatchNorm layer with random parameters and running statistics."""
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def convolve_plainly(conv, x):
    """A depthwise convolution in the dtype of x."""
    return F.conv2d(x, conv.weight.to(x.dtype), None, conv.stride, 1, groups=conv.groups)


def depthwise_gradients(conv, x, dy, convolve):
    """Output and gradients of x and the weight."""
    x, conv.weight.grad = x.clone().requires_grad_(), None
    y = convolve(conv, x)
    y.backward(dy.to(y.dtype))
    return y.detach(), x.grad, conv.weight.grad


def depthwise_shapes():
    """(channels, stride, input size) of all depthwise layers of our networks, each once."""
    layers = [(conv, size) for conv, size in _convolutions() if conv.groups == conv.in_channels > 1]
    return sorted({(conv.in_channels, conv.stride[0], size) for conv, size in layers})


def pointwise_shapes():
    """(input channels, output channels, input size) of all 1x1 layers, each once.

    Channels are padded to multiples of 8, as those of ShuffleNet's matrices are.
    """
    layers = [(conv, size) for conv, size in _convolutions() if conv.kernel_size == (1, 1)]
    channels = [(-(-c.in_channels // 8) * 8, -(-c.out_channels // 8) * 8, s) for c, s in layers]
    return sorted(set(channels))


@cache
def _convolutions():
    """All convolutions of our networks, and the sizes of their inputs."""
    found = []
    for name, options in (
        ("shufflenet", {}),
        ("shufflenet", {"groups": 3}),
        ("mobilenetv2", {}),
        ("mobilenetv2", {"width": 1.0}),
    ):
        model = create_model(name, 4, **options).eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(
                    lambda conv, given, _: found.append((conv, given[0].shape[-1]))
                )
        with torch.no_grad():
            model(torch.zeros(1, 3, 32, 32))
    return found


def randomize_norms(module):
    """Gives all BatchNorm layers random parameters and running statistics."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.load_state_dict(create_norm(norm.num_features).state_dict())
    return module
