"""Evaluation with BatchNorm in the weight of the convolution before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.models.batch_norm import channels_last, on_device_of
from fedaux_pl.models.contexts import holding
from fedaux_pl.models.pairs import (
    PAIRED_GEOMETRY,
    as_pairs,
    empty_pairs,
    from_pairs,
    takes_pairs,
    write_pairs,
)
from fedaux_pl.models.stem import ALIGNMENT, convolve_images, is_stem, pad_channels, stem_images
from fedaux_pl.models.tiling import to_be_repeated

Layers = tuple[nn.Conv2d, nn.BatchNorm2d]


class Folded:
    """Weight and bias of a convolution that does what it and BatchNorm in evaluation do.

    Args:
        layers: The convolution, without a bias of its own, and its norm layer.
        shortcut: Layers whose result is added to that of the others.
        dtype: Of what they compute in.

    Attributes:
        weight: The weight, channels last and with input channels of zeros up to a multiple of
            eight.
        side: That of the shortcut, if there is one.
        bias: The bias, with that of the shortcut added to it.
    """

    def __init__(self, layers: Layers, shortcut: Layers | None, dtype: torch.dtype) -> None:
        self._layers, self._shortcut = layers, shortcut
        self.weight = _empty_weight(layers[0], dtype)
        self.side = None if shortcut is None else _empty_weight(shortcut[0], dtype)
        self.bias = self.weight.new_empty(len(self.weight))
        self._pairs: tuple[Tensor, Tensor] | None = None
        self.refresh()

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Weight and bias for pairs of pixels, which are there from the first time on."""
        if self._pairs is None:
            self._pairs = empty_pairs(self.weight), self.bias.new_empty(2 * len(self.bias))
            self._pair()
        return self._pairs

    def refresh(self) -> None:
        """Computes all of it from the layers as they are now, in the same places."""
        if self._shortcut is None or self.side is None:
            fold(*self._layers, self.weight, self.bias)
        else:
            own, other = self.bias.new_empty(2, len(self.bias), dtype=torch.float32)
            fold(*self._layers, self.weight, own)
            fold(*self._shortcut, self.side, other)
            torch.add(own, other, out=self.bias)
        self._pair()

    def _pair(self) -> None:
        if self._pairs is not None:
            weight, bias = self._pairs
            write_pairs(self.weight, weight)
            bias.view(2, -1).copy_(self.bias)


class Folds:
    """What was folded, for all batches until the weights are others.

    Only who changes weights can tell: a captured training step, for one, leaves no trace on them.
    So without it everything is folded anew for every batch.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Folded] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it convolutions are folded when they are met for the first time."""
        with holding(_folds, self):
            yield

    def refresh(self) -> None:
        """Folds all of them again, in the same places, to which recorded passes refer."""
        for folded in self._known.values():
            folded.refresh()

    def find(self, layers: Layers, shortcut: Layers | None, dtype: torch.dtype) -> Folded:
        """What a convolution was folded to, see :class:`Folded`."""
        key = layers, shortcut, dtype
        if key not in self._known:
            self._known[key] = Folded(*key)
        return self._known[key]


_folds: ContextVar[Folds | None] = ContextVar("folds", default=None)


def convolve_folded(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    x: Tensor,
    residual: Tensor | None,
    shortcut: Layers | None = None,
) -> Tensor:
    """relu(norm(conv(x)) + residual) in one kernel, two with a shortcut.

    It is cuDNN's, of pairs of pixels where these are faster, or for images our own.

    Args:
        conv: The convolution.
        norm: Its norm layer.
        x: Activations.
        residual: What is added.
        shortcut: Layers that the residual goes through first. Their weight takes a second kernel,
            their bias is added with the other one.
    """
    folds = _folds.get() or Folds()
    folded = folds.find((conv, norm), None if residual is None else shortcut, x.dtype)
    if residual is not None and shortcut is not None and folded.side is not None:
        residual = channels_last(pad_channels(residual))
        residual = _convolve(residual, folded.side, shortcut[0])
    if residual is None and is_stem(conv) and x.numel():
        return convolve_images(stem_images(x), folded.weight, folded.bias, relu=True)
    x = channels_last(pad_channels(x))
    residual = None if residual is None else channels_last(residual)
    if takes_pairs(conv, x):
        residual = None if residual is None else as_pairs(residual)
        return from_pairs(_convolve_act(x, *folded.pairs, residual, PAIRED_GEOMETRY))
    return _convolve_act(x, folded.weight, folded.bias, residual, _geometry(conv))


def _convolve_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    geometry: tuple[Any, Any, Any],
) -> Tensor:
    """relu(conv(x) + bias + residual), all of it channels last."""
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *geometry, 1)
    return torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *geometry, 1)


def _convolve(x: Tensor, weight: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution without bias, whose kernels cuDNN tries: its guess may be ten times slower.

    It does not where results are to repeat, since the fastest of one run is not that of the next.
    """
    if not x.is_cuda:
        return torch.conv2d(x, weight, None, *_geometry(conv))
    exact = to_be_repeated()
    stride, padding, dilation = _geometry(conv)
    return torch.cudnn_convolution(x, weight, padding, stride, dilation, 1, not exact, exact, True)


def _geometry(conv: nn.Conv2d) -> tuple[Any, Any, Any]:
    return conv.stride, conv.padding, conv.dilation


def _empty_weight(conv: nn.Conv2d, dtype: torch.dtype) -> Tensor:
    """Room for the weight of a convolution, with input channels up to a multiple of eight."""
    channels, in_channels, height, width = conv.weight.shape
    padded = in_channels + -in_channels % ALIGNMENT
    empty = conv.weight.new_empty(channels, height, width, padded, dtype=dtype)
    return empty.permute(0, 3, 1, 2)


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d, folded: Tensor, bias: Tensor) -> None:
    """Writes the weight and bias of a convolution with BatchNorm's in them.

    Args:
        conv: The convolution, without a bias of its own.
        norm: The norm layer, in evaluation.
        folded: Where the weight goes: channels last, with zeros beyond the input channels of the
            convolution.
        bias: Where the bias goes.
    """
    from fedaux_pl.models import kernels

    weight = conv.weight
    channels, in_channels, height, width = weight.shape
    if weight.stride(2) != width * weight.stride(3):
        weight = weight.contiguous()
    padded = folded.shape[1]
    with on_device_of(weight):
        kernels.fold_kernel[(channels,)](
            weight,
            folded,
            bias,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            height * width * padded,
            in_channels,
            weight.stride(0),
            weight.stride(1),
            weight.stride(3),
            padded,
            norm.eps,
            BLOCK=1024,
        )
