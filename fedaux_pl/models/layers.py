"""What the architectures have in common: channel counts, norm layers and initialisation."""

import math
from collections.abc import Callable
from typing import Literal, get_args

from torch import nn
from torchvision.models._utils import _make_divisible

from fedaux_pl.models.checks import check_real

Norm = Literal["batch", "group"]

_MAX_GROUPS = 32
_MIN_CHANNELS_PER_GROUP = 4


def scale_channels(channels: int, width: float, divisor: int = 8) -> int:
    """Multiply a channel count by ``width`` and round it to a multiple of ``divisor``.

    Args:
        channels: The channel count of the architecture at width 1.
        width: Multiplier, greater than zero.
        divisor: What the result has to be divisible by; also the least result.

    Returns:
        The nearest multiple, or the next higher one where rounding down would lose more than a
        tenth of the channels.
    """
    check_real("width", width, positive=True)
    return int(_make_divisible(channels * width, divisor))


def group_count(channels: int) -> int:
    """Number of groups that GroupNorm splits ``channels`` into.

    It is the greatest power of two that divides the channels, is at most 32 (the number of groups
    of Wu and He, "Group Normalization", ECCV 2018) and leaves at least four channels to a group; or
    one group where there is none. Without that minimum, narrow layers would have one channel to a
    group, and GroupNorm would erase everything but its bias where the feature map is 1x1, which it
    is at the end of every network here on 8x8 images.

    Args:
        channels: Number of channels, at least 1.
    """
    groups = math.gcd(channels, _MAX_GROUPS)
    while groups > 1 and channels // groups < _MIN_CHANNELS_PER_GROUP:
        groups //= 2
    return groups


def norm_factory(norm: Norm) -> Callable[[int], nn.Module]:
    """Return the constructor of the norm layer called ``norm``, which takes the channel count.

    Args:
        norm: ``"batch"`` for BatchNorm, or ``"group"`` for GroupNorm, with which the output for an
            image does not depend on the other images of its batch.

    Raises:
        ValueError: If the name is neither of the two.
    """
    if norm == "batch":
        return nn.BatchNorm2d
    if norm == "group":
        return lambda channels: nn.GroupNorm(group_count(channels), channels)
    raise ValueError(
        f"norm={norm!r} is unknown; pass one of {', '.join(map(repr, get_args(Norm)))}."
    )


def init_convolutions(model: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of all convolutions as He et al. (2015) do for ReLU networks.

    Args:
        model: The model, whose convolutions have no biases.
        mode: Whether the variance of the activations (``fan_in``) or of the gradients
            (``fan_out``) is kept.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
