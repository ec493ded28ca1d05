"""The journal of a site: what it was asked and what it has sent, line by line, on stdout."""

import time
from collections import Counter

_HOUR = 3600.0  # seconds
_HEAD = 700  # how many characters of a long line are printed from its start
_TAIL = 300  # how many of them are printed from its end
_ALWAYS = {"NOT answered": 100}  # how many lines of a kind every hour can have
_ALWAYS_OTHERS = 1000  # the same number for all other kinds


class Journal:
    """Prints lines with the time, but so few that no server can fill a disk by its requests.

    Each hour has the first 1000 lines of each kind, but only the first 100 refusals. After them,
    only the 1024th line, the 2048th and so on are printed, with their number. The next hour begins
    with the number of lines that were left out.
    """

    def __init__(self) -> None:
        self._begin_hour()

    def _begin_hour(self) -> None:
        self._start = time.monotonic()
        self._counts: Counter[str] = Counter()  # the lines of this hour, by kind
        self._left_out: Counter[str] = Counter()  # those of them that were not printed

    def log_line(self, text: str, kind: str) -> None:
        """Print one line, unless this hour has too many lines of its kind.

        Parts of the text come from the server. They are escaped, so that they cannot pretend to be
        other lines, and so that no character that cannot be printed ends the site. The middle of a
        long line is left out.

        Args:
            text: The line.
            kind: What lines are counted by. No server may choose it.
        """
        if time.monotonic() - self._start >= _HOUR:
            for name, count in self._left_out.items():
                _print(f"left out before: {count:,} lines {name!r}")
            self._begin_hour()
        self._counts[kind] += 1
        count = self._counts[kind]
        always = _ALWAYS.get(kind, _ALWAYS_OTHERS)
        if not is_printed(count, always):
            self._left_out[kind] += 1
            return
        line = text.encode("unicode_escape").decode()
        if len(line) > _HEAD + _TAIL:
            left = f"[{len(line) - _HEAD - _TAIL:,} characters left out]"
            line = f"{line[:_HEAD]} {left} {line[-_TAIL:]}"
        _print(line if count <= always else f"{line} ({count:,} such lines in this hour)")


def _print(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


def is_printed(count: int, always: int) -> bool:
    """Return whether line ``count`` is printed: the first ``always`` lines, then 1024, 2048 etc."""
    return count <= always or count & (count - 1) == 0
