"""The progress bars of stages, drawn with tqdm."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsFloat

from tqdm import tqdm  # type: ignore[import-untyped]

INTERVAL = 0.2
"""Minimum seconds between two updates of a stage's bar."""

MIN_RATE_COLUMNS = 96
"""Minimum columns of a terminal for a bar with its rate."""


class Stage:
    """Receives the progress of a stage. This base class shows nothing."""

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Reports progress.

        Args:
            n: The number of units completed since the last report.
            **values: Numbers to show after the bar. They are read only when the bar is drawn:
                reading a tensor on a GPU in every batch would wait for its kernels.
        """


class Bar(tqdm):  # type: ignore[misc]
    """A tqdm bar on stderr that is drawn at every update and fits narrow terminals."""

    monitor_interval = 0  # no monitor thread: it is not needed, and forks lose it

    def __init__(self, **options: Any) -> None:
        self._process = os.getpid()
        # no rate limit of tqdm: it would make refresh() distort the rate
        super().__init__(**options, file=sys.stderr, dynamic_ncols=True, mininterval=0, miniters=0)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Chooses the format: tqdm would cut off the accuracy at the end of the line."""
        fields: dict[str, Any] = super().format_dict
        if fields["total"] is None:
            fields["bar_format"] = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"
        elif fields["ncols"] and fields["ncols"] < MIN_RATE_COLUMNS:
            fields["bar_format"] = (
                "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            )
        return fields

    def close(self) -> None:
        """Closes the bar; not in a forked process, which would erase it from the screen."""
        if os.getpid() == self._process:
            super().close()


class LineStage(Stage):
    """A stage that prints lines, ever more rarely.

    Args:
        name: The name of the stage.
        total: The number of units; None if unknown.
        unit: The unit, in the singular.
        first: The seconds until the first line; each further one takes twice as long.
    """

    def __init__(self, name: str, total: int | None, unit: str, first: float) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._started, self._next = time.monotonic(), first
        self._n = 0

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Reports progress."""
        self._n += n
        if (seconds := time.monotonic() - self._started) >= self._next:
            self._next = 2 * seconds
            count = f"{self._unit} {self._n}{format_total(self._total)}"
            details = ", ".join(filter(None, (count, format_values(values))))
            print_above_bars(f"{self._name}: {details}, {seconds:.0f} s", file=sys.stderr)


class BarStage(Stage):
    """A stage with its own bar.

    Args:
        draw_now: Whether to draw the bar at once; otherwise the first report does.
        on_draw: Called after every drawing.
        is_enabled: Returns whether drawing is allowed.
        **options: The options of the bar.

    Attributes:
        opened: The time of the first drawing; 0 before it.
    """

    def __init__(
        self,
        draw_now: bool,
        on_draw: Callable[[], None],
        is_enabled: Callable[[], bool],
        **options: Any,
    ) -> None:
        self._on_draw, self._is_enabled, self._options = on_draw, is_enabled, options
        self.opened = 0.0
        self._bar: Any = None
        self._is_open = is_terminal()
        self._started, self._drawn = time.time(), time.monotonic()
        self._n = 0
        self._values = ""
        self._has_nested = False
        if self._is_open and draw_now:
            self.draw()

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Reports progress; the bar is drawn at most every `INTERVAL` seconds."""
        self._n += n
        if self.is_due():
            self._values = format_values(values)
            self.draw()

    @contextmanager
    def nested(self, name: str, total: int | None) -> Iterator[Stage]:
        """A stage within this one, shown as a note on its bar; deeper ones are not shown."""
        if self._has_nested:
            yield Stage()
            return
        self._has_nested = True
        if total is None and self._is_open and self._is_enabled():
            self.draw(name)  # at once: it may report nothing until it ends
        try:
            yield NoteStage(self, name, total)
        finally:
            self._has_nested = False  # the note stays until the next drawing, to avoid flicker

    def is_due(self) -> bool:
        """Whether the bar may be drawn now."""
        is_due = self._is_open and time.monotonic() - self._drawn >= INTERVAL
        return is_due and self._is_enabled()

    def draw(self, note: str = "") -> None:
        """Draws the bar, with a note at its end."""
        self._drawn = time.monotonic()
        if self._bar is None:
            self.opened = self._drawn
            self._bar = Bar(**self._options, leave=False)
            self._bar.start_t = self._bar.last_print_t = self._started
        self._bar.set_postfix_str(", ".join(filter(None, (self._values, note))), refresh=False)
        if self._n == self._bar.n:
            self._bar.refresh()
        else:
            self._bar.update(self._n - self._bar.n)
        self._on_draw()

    def close(self) -> None:
        """Removes the bar."""
        self._is_open = False
        if self._bar is not None:
            self._bar.close()


class NoteStage(Stage):
    """A stage within another one, shown as a note on its bar."""

    def __init__(self, outer: BarStage, name: str, total: int | None) -> None:
        self._outer, self._name, self._total = outer, name, total
        self._n = 0

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Reports progress."""
        self._n += n
        if self._outer.is_due():
            count = f"{self._name} {self._n}{format_total(self._total)}"
            self._outer.draw(", ".join(filter(None, (count, format_values(values)))))


def print_above_bars(*args: Any, **kwargs: Any) -> None:
    """Prints with the arguments of the builtin, above all bars of tqdm."""
    with tqdm.external_write_mode(file=kwargs.get("file")):
        print(*args, **kwargs)


def format_values(values: Mapping[str, SupportsFloat]) -> str:
    """Names and numbers for the end of a bar."""
    return ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def format_total(total: int | None) -> str:
    """The second half of "3/10"; empty if the total is unknown."""
    return "" if total is None else f"/{total}"


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
