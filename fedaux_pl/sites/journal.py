"""The journal of a site: lines about what it was asked and what it sent, on standard output."""

import time
from collections import Counter

_HOUR = 3600.0  # seconds
_HEAD = 700  # the characters of a long line that are printed at its start
_TAIL = 300  # and at its end
_ALWAYS = {"NOT answered": 100}  # the lines of a kind that an hour has in any case
_OTHERS = 1000


class Journal:
    """Prints lines with the time, so many that no server fills a disk by its requests.

    An hour has the first 1000 lines of each kind, of refusals 100, then the 1024th, 2048th and so
    on with their number. The next hour begins with the number of lines that were left out.
    """

    def __init__(self) -> None:
        self._begin_hour()

    def _begin_hour(self) -> None:
        self._start = time.monotonic()
        self._counts: Counter[str] = Counter()  # of this hour, by kind
        self._left_out: Counter[str] = Counter()

    def log_line(self, text: str, kind: str) -> None:
        """Print one line, unless this hour has too many of its kind, which no server may choose.

        Parts of the text come from the server: escaped, they cannot pretend to be other lines, and
        no character that cannot be printed ends the site. The middle of a long line is left out.
        """
        if time.monotonic() - self._start >= _HOUR:
            for name, count in self._left_out.items():
                _print(f"left out before: {count:,} lines {name!r}")
            self._begin_hour()
        self._counts[kind] += 1
        count = self._counts[kind]
        always = _ALWAYS.get(kind, _OTHERS)
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
    """Return whether line ``count`` is printed: the first ones all, then 1024, 2048 and so on."""
    return count <= always or count & (count - 1) == 0
