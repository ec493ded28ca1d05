"""Checks of constructor arguments that every architecture shares."""

import math
from numbers import Real


def check_positive_int(name: str, value: int) -> int:
    """Return ``value`` if it is an integer of at least 1.

    Args:
        name: What the argument is called where the user sets it, for the message.
        value: The value to check.

    Raises:
        TypeError: If the value is not an integer (booleans are not taken for integers).
        ValueError: If the value is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name}={value!r} is a {type(value).__name__}; pass an integer of at least 1."
        )
    if value < 1:
        raise ValueError(f"{name}={value} is too small; pass an integer of at least 1.")
    return value


def check_real(name: str, value: float, *, positive: bool = False) -> float:
    """Return ``value`` as a float if it is a finite number, above zero where asked.

    Args:
        name: What the argument is called where the user sets it, for the message.
        value: The value to check.
        positive: Whether the value has to be greater than zero.

    Raises:
        TypeError: If the value is not a real number.
        ValueError: If the value is infinite, not a number, or not positive where it has to be.
    """
    allowed = "a finite number greater than 0" if positive else "a finite number"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass {allowed}.")
    number = float(value)
    if not math.isfinite(number) or (positive and number <= 0):
        raise ValueError(f"{name}={value!r} is not allowed; pass {allowed}.")
    return number
