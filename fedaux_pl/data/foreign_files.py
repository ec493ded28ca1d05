"""Checks of files from elsewhere, which may be damaged or made to do damage."""

import os
from collections.abc import Sequence
from functools import cache

from fedaux_pl.errors import DataError, first_line

_LARGE = 1 << 30  # bytes; below it any compression is accepted
_MAX_EXPANSION = 100  # images and texts are compressed 2 to 20 times


def check_expansion(size: int, compressed: int, what: str) -> None:
    """Raises a DataError if ``size`` bytes, declared or counted so far, would fill the memory."""
    if size > _memory():
        raise DataError(
            f"{what} has {_gigabytes(size)}, but this machine has {_gigabytes(_memory())}: "
            "use fewer or smaller samples"
        )
    if size > max(_LARGE, _MAX_EXPANSION * compressed):
        raise DataError(
            f"{what} grows from {_gigabytes(compressed)} to {_gigabytes(size)} or more when it is "
            "decompressed, a possible decompression bomb: if you trust it, store it uncompressed"
        )


def reason_of(error: Exception) -> str:
    """What a library says about a damaged file, on one line of at most 200 characters."""
    reason = first_line(error)
    return reason if len(reason) <= 200 else f"{reason[:197]}..."


def shorten(names: Sequence[str], limit: int = 10) -> str:
    """Names for a message: at most ``limit``, each on one line and of at most 40 characters."""
    shown = [name if name.isprintable() else repr(name) for name in names[:limit]]
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in shown]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


@cache
def _memory() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB"
