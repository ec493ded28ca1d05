"""Checks of options that several methods share."""

import math
from numbers import Real


def check_positive(**options: float) -> None:
    """Raises a ValueError for an option that is not a positive number.

    Example:
        >>> check_positive(server_lr=0.1, tau=1e-3)
        >>> check_positive(server_lr=-1)
        Traceback (most recent call last):
        ValueError: server_lr must be a positive number, but is -1
    """
    for name, value in options.items():
        if not (isinstance(value, Real) and 0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number, but is {value!r}")


def check_decay(**options: float) -> None:
    """Raises a ValueError for an option that does not lie in [0, 1)."""
    for name, value in options.items():
        if not (isinstance(value, Real) and 0 <= value < 1):
            raise ValueError(f"{name} must lie in [0, 1), but is {value!r}")
