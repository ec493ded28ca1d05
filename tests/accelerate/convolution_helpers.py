"""Helpers of the checks of convolution kernels; importing them defines no kernel."""

import dataclasses
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from fedaux_pl.accelerate import eligibility
from fedaux_pl.accelerate.convolution import depthwise, folding, networks, tiling
from fedaux_pl.models import create_model


def use_small_tiles(monkeypatch, tile_size=256, programs=4):
    """Makes small tensors have several chunks and tiles: with 32 channels, tiles of 8 rows."""
    parameters = dataclasses.replace(
        tiling.EXCLUSIVE_DEVICE, tile_size=tile_size, programs=programs
    )
    monkeypatch.setattr(tiling, "EXCLUSIVE_DEVICE", parameters)


def use_one_program(monkeypatch):
    """Makes a kernel one program with few tiles: the interpreter's time grows with programs."""
    use_small_tiles(monkeypatch, tile_size=8192, programs=1)
    monkeypatch.setattr(tiling, "BLOCK_CHANNELS", 1024)
    monkeypatch.setattr(tiling, "SINGLE_KERNEL_BLOCK_CHANNELS", 1024)
    monkeypatch.setattr(depthwise, "BLOCK_CHANNELS", 1024)
    monkeypatch.setattr(depthwise, "TILE", 2**15)


def fold_in_pytorch(monkeypatch):
    """Replaces the kernel of :func:`fold_batch_norm`, which has checks of its own."""

    def fold(conv, norm, folded_weight, folded_bias):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        folded_weight.zero_()
        folded_weight[:, : conv.weight.shape[1]] = conv.weight * scale[:, None, None, None]
        folded_bias.copy_(norm.bias - norm.running_mean * scale)

    monkeypatch.setattr(folding, "fold_batch_norm", torch.no_grad()(fold))


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


def create_norm(channels):
    """A BatchNorm layer with random parameters and running statistics."""
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


@cache
def depthwise_shapes(size=32):
    """(channels, stride, input size) of all depthwise layers of our networks, each once."""
    layers = _convolutions(size)
    return sorted(
        {
            (conv.in_channels, conv.stride[0], input_size)
            for conv, input_size in layers
            if conv.groups == conv.in_channels > 1
        }
    )


@cache
def pointwise_shapes(size=32):
    """(input channels, output channels, input size) of all 1x1 layers, each once.

    Channels are padded to multiples of 8, as those of ShuffleNet's matrices are.
    """
    return sorted(
        {
            (-(-conv.in_channels // 8) * 8, -(-conv.out_channels // 8) * 8, input_size)
            for conv, input_size in _convolutions(size)
            if conv.kernel_size == (1, 1)
        }
    )


@cache
def _convolutions(size):
    """All convolutions of our networks, and the sizes of their inputs.

    ShuffleNet with 2 and 3 groups, MobileNetV2 with half and the whole width.
    """
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
            model(torch.zeros(1, 3, size, size))
    return found


def randomize_norms(module):
    """Gives all BatchNorm layers random parameters and running statistics."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.load_state_dict(create_norm(norm.num_features).state_dict())
    return module
