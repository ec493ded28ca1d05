"""Whether server and sites run versions that can talk, and which side must be updated."""

import re

from fedaux_pl._version import __version__

_FIRST = re.compile(r"(\d{1,4})\.(\d{1,4})")
_UNNAMED = "1.0 or an earlier version"  # those that do not send their version


def minor_version() -> str:
    """Return the version that both sides must share, such as 2.0."""
    major, minor = _numbers(__version__)
    return f"{major}.{minor}"


def describe_difference(theirs: object, here: str, there: str) -> str | None:
    """Return why two sides cannot talk, and which one to update; None if they can.

    Args:
        theirs: The version that the other side has sent.
        here: What this side is called.
        there: What the other side is called.

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
