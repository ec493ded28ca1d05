"""Channel counts, norm layers and initialization of the architectures for images."""

import math
from collections.abc import Callable
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models._utils import _make_divisible

from fedaux_pl.errors import PrivacyError
from fedaux_pl.models.classifier import check_real

Norm = Literal["batch", "group"]
"""The normalization of a network: BatchNorm, or GroupNorm, which has no running statistics."""
NormFactory = Callable[[int], nn.Module]
"""Creates a norm layer for so many channels."""

_MAX_GROUPS = 32
_MIN_CHANNELS_PER_GROUP = 4


def scale_channels(channels: int, width: float, divisor: int = 8) -> int:
    """Multiply a channel count by ``width`` and round it to a multiple of ``divisor``.

    The result is the nearest positive multiple, or the next higher one if rounding down would lose
    more than a tenth of the channels.
    """
    check_real("width", width, positive=True)
    return int(_make_divisible(channels * width, divisor))


def group_count(channels: int) -> int:
    """Number of groups into which GroupNorm splits ``channels``.

    It is the greatest power of two that divides the channels, is at most 32 (as in Wu and He,
    "Group Normalization", ECCV 2018) and leaves at least four channels per group, or 1 if there is
    none. With one channel per group, GroupNorm would reduce 1x1 feature maps to its bias, and for
    8x8 images the last feature maps of all networks here are 1x1.
    """
    groups = math.gcd(channels, _MAX_GROUPS)
    while groups > 1 and channels // groups < _MIN_CHANNELS_PER_GROUP:
        groups //= 2
    return groups


def norm_factory(norm: Norm) -> NormFactory:
    """Return a constructor of norm layers that takes the channel count.

    With ``"group"``, GroupNorm, the output for an image does not depend on others of its batch.
    """
    if norm == "batch":
        return nn.BatchNorm2d
    if norm == "group":
        return lambda channels: nn.GroupNorm(group_count(channels), channels)
    raise ValueError(f"norm={norm!r} is unknown; pass one of 'batch', 'group'.")


def init_convolutions(model: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Initialize the weights of all convolutions as He et al. (2015) do for ReLU networks.

    ``fan_in`` preserves the variance of the activations, ``fan_out`` that of the gradients.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


def check_separate_records(h0: nn.Module) -> None:
    """Raise a PrivacyError if h_0(x) of a record depends on other records in evaluation mode."""
    layers = [layer for layer in h0.modules() if isinstance(layer, _BatchNorm)]
    if any(layer.running_mean is None for layer in layers):
        raise PrivacyError(
            "h_0 has a BatchNorm with track_running_stats=False, with which the features of a "
            "record depend on all others: use running statistics, or GroupNorm"
        )
