"""Progress bars on stderr, drawn with tqdm, and printing above them."""

import os
import sys
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

MIN_RATE_COLUMNS = 96
"""Minimum columns of a terminal for a bar with its rate."""


class Bar(tqdm):  # type: ignore[misc]
    """A tqdm bar on stderr that is drawn at every update and fits narrow terminals."""

    monitor_interval = 0  # no monitor thread: it is not needed, and forks lose it

    def __init__(self, **options: Any) -> None:
        self._process = os.getpid()
        # no rate limit of tqdm: it would make refresh() distort the rate
        super().__init__(**options, file=sys.stderr, dynamic_ncols=True, mininterval=0, miniters=0)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Choose the format: tqdm would cut off the accuracy at the end of the line."""
        fields: dict[str, Any] = super().format_dict
        if fields["total"] is None:
            fields["bar_format"] = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"
        elif fields["ncols"] and fields["ncols"] < MIN_RATE_COLUMNS:
            fields["bar_format"] = (
                "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            )
        return fields

    def close(self) -> None:
        """Close the bar; not in a forked process, which would erase it from the screen."""
        if os.getpid() == self._process:
            super().close()


def print_above_bars(*args: Any, **kwargs: Any) -> None:
    """Print with the arguments of the builtin, above all bars of tqdm."""
    with tqdm.external_write_mode(file=kwargs.get("file")):
        print(*args, **kwargs)


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
