"""The exceptions of this package, and the hint that belongs to a misspelled name.

A wrong argument raises a plain ``ValueError`` or ``TypeError``.
"""

import math
import os
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from pathlib import Path


class FedauxError(Exception):
    """The base class of all exceptions of this package."""


class DataError(FedauxError):
    """Data that cannot be used."""


class DataNotFoundError(DataError, FileNotFoundError):
    """Data that does not exist at the given path."""


class ConfigurationError(FedauxError):
    """Settings that contradict each other."""


class PrivacyError(FedauxError):
    """A release that the claimed privacy guarantee does not cover."""


class UsageError(ConfigurationError):
    """Wrong options of a command line ``prog VERB``, which end the process with status 2."""

    def __init__(self, message: str, prog: str = "fedaux-pl") -> None:
        super().__init__(message)
        self.prog = prog


EXPECTED = (FedauxError, FloatingPointError, OSError)
"""The errors that are told in one line, without a traceback."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""
TERMINATED = 143
"""The exit status after SIGTERM."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none.

    Examples:
        >>> first_line(ValueError("bad value")), first_line(ValueError())
        ('bad value', 'ValueError')
    """
    return str(error).strip().partition("\n")[0] or type(error).__name__


def check_setting(name: str, value: object, is_allowed: bool, expected: str) -> None:
    """Raise a ValueError unless a setting is allowed.

    Examples:
        >>> check_setting("alpha", 0.0, False, "be positive and finite")
        Traceback (most recent call last):
        ValueError: alpha: got 0.0; expected to be positive and finite
    """
    if not is_allowed:
        raise ValueError(f"{name}: got {value!r}; expected to {expected}")


def is_positive(value: float) -> bool:
    """Return whether a value is a number above 0 and finite."""
    return isinstance(value, Real) and 0 < value < math.inf


def is_fraction(value: float) -> bool:
    """Return whether a value is a number in [0, 1)."""
    return isinstance(value, Real) and 0 <= value < 1


def is_count(value: object, least: int) -> bool:
    """Return whether a value is an integer, not a bool, of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> counted(1, "client"), counted(1000, "sample")
        ('1 client', '1,000 samples')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the closest known name in any case; empty if none is close.

    Examples:
        >>> did_you_mean("fedavg", ["FedAUX", "FedAvg"])
        ' (did you mean FedAvg?)'
    """
    closest = _closest(name, known)
    return f" (did you mean {closest}?)" if closest else ""


def did_you_mean_path(path: Path) -> str:
    """Return " (did you mean X?)" with an existing path close to a missing one; else empty.

    Each misspelled part of the path may be close to the name of a file or folder beside it.
    """
    found = Path(path.anchor)
    for part in path.relative_to(path.anchor).parts:
        name: str | None = part
        if not (found / part).exists():
            try:
                name = _closest(part, os.listdir(found))
            except OSError:  # it is no folder, or cannot be read
                name = None
        if name is None:
            return ""
        found /= name
    return "" if found == path else f" (did you mean {found}?)"


def _closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest, in any case; None if none is close."""
    spelled = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), spelled, n=1)
    return spelled[close[0]] if close else None
