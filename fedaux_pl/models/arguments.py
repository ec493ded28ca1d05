"""Checks of constructor arguments, for all architectures; each returns the checked value."""

import math
from numbers import Real


def check_int(name: str, value: int, minimum: int = 1) -> int:
    """Raise a TypeError unless ``value`` is an integer, a ValueError if it is below ``minimum``."""
    allowed = f"an integer of at least {minimum}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass {allowed}.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small; pass {allowed}.")
    return value


def check_real(name: str, value: float, *, positive: bool = False) -> float:
    """Raise a TypeError unless ``value`` is a number, a ValueError unless finite (and positive)."""
    allowed = "a finite number greater than 0" if positive else "a finite number"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass {allowed}.")
    number = float(value)
    if not math.isfinite(number) or (positive and number <= 0):
        raise ValueError(f"{name}={value!r} is not allowed; pass {allowed}.")
    return number
