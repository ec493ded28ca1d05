"""How axes and labels of a sweep are written in tables and figures."""

import math
from collections.abc import Iterable, Mapping


def number(label: str) -> float | None:
    """The finite number that a label says; None if it says none.

    Example:
        >>> number("1.0e-5"), number("FedAVG"), number("inf")
        (1e-05, None, None)
    """
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def short_names(axes: Iterable[str]) -> dict[str, str]:
    """The last parts of the axes' names, as few as tell all of them apart.

    Example:
        >>> short_names(["method", "model.local.lr", "model.distillation.lr"])
        {'method': 'method', 'model.local.lr': 'local.lr', 'model.distillation.lr': 'distillation.lr'}
    """  # noqa: E501
    parts = {axis: axis.split(".") for axis in axes}
    short = {}
    for axis, own in parts.items():
        others = [other for other in parts.values() if other is not own]
        depths = range(1, len(own) + 1)
        depth = next((d for d in depths if all(o[-d:] != own[-d:] for o in others)), len(own))
        short[axis] = ".".join(own[-depth:])
    return short


def value_text(axis: str, label: str) -> str:
    """A label that can stand alone: a number, true or false has its axis before it.

    Example:
        >>> value_text("alpha", "0.01"), value_text("method", "FedAVG")
        ('alpha = 0.01', 'FedAVG')
    """
    says_itself = number(label) is None and label.lower() not in ("true", "false", "inf", "null")
    return label if says_itself else f"{axis} = {label}"


def place_text(coordinates: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Coordinates in one line, such as ``FedAVG, alpha = 0.01``; ``all`` if there are none."""
    return ", ".join(value_text(names[a], label) for a, label in coordinates.items()) or "all"
