"""Evaluation with BatchNorm folded into the weight and bias of the convolution before it."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedaux_pl.accelerate.context import current, launch
from fedaux_pl.accelerate.convolution.batch_norm import Activation, channels_last
from fedaux_pl.accelerate.convolution.image_stem import (
    ALIGNMENT,
    convolve_images,
    is_stem,
    pad_channels,
    prepare_stem_input,
)
from fedaux_pl.accelerate.convolution.tiling import is_deterministic

T = TypeVar("T")

# Two adjacent output pixels of a 3x3 convolution depend on four input columns, so a 3x4 convolution
# with horizontal stride 2 and twice the output channels computes both. In channels-last memory its
# output, viewed as single pixels, is that of the 3x3 convolution. With 64 output channels cuDNN's
# tiles are half empty: on an H200, 64 to 64 channels in bfloat16 on 5,000 maps of 32x32 take 0.758
# ms with ReLU and 0.892 ms with residual and ReLU, in pairs 0.693 and 0.798 ms.
PAIRED_CHANNELS = 64
MIN_PAIRED_PIXELS = 2**20  # of a batch; smaller ones were not measured
PAIRED_GEOMETRY: tuple[Any, Any, Any] = (1, 2), (1, 1), (1, 1)
"""Stride, padding and dilation of the convolution of pairs."""

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]
"""A convolution without bias and its norm layer."""


class FoldedConvolution:
    """The weight and bias of a convolution with BatchNorm folded in.

    Args:
        layers: The convolution and its norm layer.
        shortcut: The convolution and norm layer of a shortcut that is added to their output.
        dtype: The dtype of the weights and the bias.

    Attributes:
        weight: The weight, channels last, its input channels padded with zeros to a multiple of 8.
        shortcut_weight: The same for the shortcut, if there is one.
        bias: The bias; that of the shortcut is added to it.
    """

    def __init__(self, layers: Layers, shortcut: Layers | None, dtype: torch.dtype) -> None:
        self._layers, self._shortcut = layers, shortcut
        self.weight = _create_weight(layers[0], dtype)
        self.shortcut_weight = None if shortcut is None else _create_weight(shortcut[0], dtype)
        self.bias = self.weight.new_empty(len(self.weight))
        self._paired: tuple[Tensor, Tensor] | None = None
        self.refresh()

    @property
    def paired(self) -> tuple[Tensor, Tensor]:
        """Weight and bias for pairs of pixels, allocated at the first access."""
        if self._paired is None:
            weight = create_paired_weight(self.weight)
            self._paired = weight, self.bias.new_empty(2 * len(self.bias))
            self._write_paired()
        return self._paired

    def refresh(self) -> None:
        """Fold the current weights of the layers, into the same tensors."""
        if self._shortcut is None or self.shortcut_weight is None:
            fold_batch_norm(*self._layers, self.weight, self.bias)
        else:
            bias, shortcut_bias = self.bias.new_empty(2, len(self.bias), dtype=torch.float32)
            fold_batch_norm(*self._layers, self.weight, bias)
            fold_batch_norm(*self._shortcut, self.shortcut_weight, shortcut_bias)
            torch.add(bias, shortcut_bias, out=self.bias)
        self._write_paired()

    def _write_paired(self) -> None:
        if self._paired is not None:
            weight, bias = self._paired
            write_paired_weight(self.weight, weight)
            bias.view(2, -1).copy_(self.bias)


class FoldCache:
    """Folded convolutions that are reused for all batches until :meth:`refresh` is called.

    The cache cannot see that weights changed: a captured training step does not even change their
    version counters. Code that changes weights has to call :meth:`refresh`. Without an active
    cache, convolutions are folded for every batch.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], Any] = {}

    def refresh(self) -> None:
        """Fold the current weights of all entries, into the tensors that captured passes read."""
        for folded in self._entries.values():
            folded.refresh()

    def get(self, kind: Callable[..., T], *arguments: Any) -> T:
        """Return folded layers; ``kind`` creates them from the arguments and they can refresh."""
        key = kind, *arguments
        if key not in self._entries:
            self._entries[key] = kind(*arguments)
        return self._entries[key]  # type: ignore[no-any-return]


def active_cache() -> FoldCache:
    """The cache of the context; a new one without it."""
    return current().folds or FoldCache()


def fold_layers(layers: Layers, dtype: torch.dtype) -> FoldedConvolution:
    """The folded convolution of two layers, from the active cache if there is one."""
    return active_cache().get(FoldedConvolution, layers, None, dtype)


def convolve_folded_stem(layers: Layers, x: Tensor, activation: Activation) -> Tensor:
    """Compute act(norm(conv(x))) of a stem in evaluation mode, in one kernel."""
    fold = fold_layers(layers, x.dtype)
    return convolve_images(prepare_stem_input(x), fold.weight, fold.bias, activation)


def convolve_folded(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    shortcut: Layers | None = None,
) -> Tensor:
    """Compute relu(norm(conv(x)) + residual) in evaluation mode, in one kernel.

    With a shortcut, relu(norm(conv(x)) + shortcut(residual)) in two kernels. The kernels are
    cuDNN's, for pairs of pixels where that is faster; stems without residual have a Triton kernel.

    Args:
        conv: The convolution, ungrouped and without bias.
        norm: Its norm layer.
        x: Activations.
        residual: Added before the ReLU, or the input of the shortcut.
        shortcut: Layers that the residual passes through first.
    """
    layers = None if residual is None else shortcut
    folded = active_cache().get(FoldedConvolution, (conv, norm), layers, x.dtype)
    if residual is not None and shortcut is not None and folded.shortcut_weight is not None:
        residual = channels_last(pad_channels(residual))
        residual = _convolve(residual, folded.shortcut_weight, shortcut[0])
    if residual is None and is_stem(conv) and x.numel():
        return convolve_images(prepare_stem_input(x), folded.weight, folded.bias, Activation())
    x = channels_last(pad_channels(x))
    residual = None if residual is None else channels_last(residual)
    if is_faster_in_pairs(conv, x):
        residual = None if residual is None else view_as_pairs(residual)
        return view_as_pixels(convolve_act(x, *folded.paired, residual, PAIRED_GEOMETRY))
    return convolve_act(x, folded.weight, folded.bias, residual, _geometry(conv))


def convolve_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    geometry: tuple[Any, Any, Any],
) -> Tensor:
    """Compute relu(conv(x) + bias + residual) of channels-last tensors by cuDNN."""
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *geometry, 1)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *geometry, 1)


def _convolve(x: Tensor, weight: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution without bias, with cuDNN's benchmark mode.

    The kernel of cuDNN's heuristic can be ten times slower. Under deterministic algorithms
    benchmark mode is off, because it can select another kernel in every run.
    """
    if not x.is_cuda:
        return torch.conv2d(x, weight, None, *_geometry(conv))
    deterministic, allow_tf32 = is_deterministic(), True
    stride, padding, dilation = _geometry(conv)
    modes = (not deterministic, deterministic, allow_tf32)
    return torch.cudnn_convolution(x, weight, padding, stride, dilation, 1, *modes)


def _geometry(conv: nn.Conv2d) -> tuple[Any, Any, Any]:
    return conv.stride, conv.padding, conv.dilation


def _create_weight(conv: nn.Conv2d, dtype: torch.dtype) -> Tensor:
    """Allocate a weight like that of ``conv``, channels last, input channels padded to 8."""
    channels, in_channels, height, width = conv.weight.shape
    padded = in_channels + -in_channels % ALIGNMENT
    empty = conv.weight.new_empty(channels, height, width, padded, dtype=dtype)
    return empty.permute(0, 3, 1, 2)


def fold_batch_norm(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, folded_weight: Tensor, folded_bias: Tensor
) -> None:
    """Write the weight and bias of a convolution with BatchNorm folded in.

    With scale = norm.weight / sqrt(running_var + eps) these are weight * scale and
    norm.bias - running_mean * scale.

    Args:
        conv: The convolution, without bias.
        norm: The norm layer, whose running statistics are used.
        folded_weight: Where the weight is written, channels last; padding channels become zeros.
        folded_bias: Where the bias is written.
    """
    weight = conv.weight
    channels, in_channels, height, width = weight.shape
    if weight.stride(2) != width * weight.stride(3):
        weight = weight.contiguous()
    padded = folded_weight.shape[1]
    launch("fold_kernel", (channels,),
        weight, folded_weight, folded_bias,
        norm.weight, norm.bias, norm.running_mean, norm.running_var,
        height * width * padded, in_channels,
        weight.stride(0), weight.stride(1), weight.stride(3), padded, norm.eps, BLOCK=1024,
    )  # fmt: skip


def is_faster_in_pairs(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether an ungrouped convolution of ``x`` was measured to be faster for pairs of pixels."""
    n, _, height, width = x.shape
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
        and conv.out_channels == PAIRED_CHANNELS
        and conv.in_channels % ALIGNMENT == 0
        and width % 2 == 0
        and n * height * width >= MIN_PAIRED_PIXELS
    )


def create_paired_weight(weight: Tensor) -> Tensor:
    """Allocate the weight (2C, D, 3, 4) of the convolution of pairs, channels last, all zeros."""
    channels, in_channels, height, width = weight.shape
    zeros = weight.new_zeros(2 * channels, height, width + 1, in_channels)
    return zeros.permute(0, 3, 1, 2)


def write_paired_weight(weight: Tensor, paired: Tensor) -> None:
    """Copy the weight (C, D, 3, 3) for single pixels into that for pairs (2C, D, 3, 4).

    The first C output channels, the left pixel, do not use the last of the four columns; the other
    C, the right pixel, do not use the first. These entries stay zero.
    """
    left, right = paired.chunk(2)
    left[..., :-1].copy_(weight)
    right[..., 1:].copy_(weight)


def view_as_pairs(x: Tensor) -> Tensor:
    """View channels-last activations (N, C, H, W) as (N, 2C, H, W / 2)."""
    n, channels, height, width = x.shape
    pairs = x.permute(0, 2, 3, 1).view(n, height, width // 2, 2 * channels)
    return pairs.permute(0, 3, 1, 2)


def view_as_pixels(x: Tensor) -> Tensor:
    """View activations (N, 2C, H, W / 2) as (N, C, H, W)."""
    n, channels, height, width = x.shape
    pixels = channels_last(x).permute(0, 2, 3, 1).view(n, height, 2 * width, channels // 2)
    return pixels.permute(0, 3, 1, 2)
