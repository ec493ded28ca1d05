"""Whether server and site run the same version, and which of them must be updated."""

import re

from fedaux_pl._version import __version__

_FIRST = re.compile(r"(\d{1,4})\.(\d{1,4})")
_UNNAMED = "1.0 or an earlier version"  # which does not send its version


def minor_version() -> str:
    """Return the part of the version that both sides must share, such as 2.0."""
    major, minor = _numbers(__version__)
    return f"{major}.{minor}"


def describe_difference(theirs: object, here: str, there: str) -> str | None:
    """Return how the versions of two sides differ and which side to update; None if they agree.

    Args:
        theirs: What the other side has sent as its version.
        here: What to call this side.
        there: What to call the other side.

    Examples:
        >>> describe_difference(None, "this site", "the server").split(": ")[1]
        'update the server'
        >>> describe_difference(minor_version(), "this site", "the server")
    """
    is_known = isinstance(theirs, str) and _FIRST.fullmatch(theirs)
    numbers = _numbers(str(theirs)) if is_known else (0, 0)
    ours = _numbers(__version__)
    if numbers == ours:
        return None
    text = theirs if is_known else _UNNAMED
    older = there if numbers < ours else here
    return f"{there} runs fedaux-pl {text}, {here} {minor_version()}: update {older}"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
