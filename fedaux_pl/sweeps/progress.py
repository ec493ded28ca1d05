"""The progress of a sweep: a line for every task, and on a terminal a bar over the cells."""

import sys
import time
from collections.abc import Callable
from typing import Any

from fedaux_pl.callbacks.progress_bars import Bar, is_terminal, print_above_bars
from fedaux_pl.sweeps.cells import State
from fedaux_pl.sweeps.estimate import Estimate, format_seconds
from fedaux_pl.sweeps.overview import problem
from fedaux_pl.sweeps.task import Task

_INTERVAL = 10.0  # seconds between two estimates: each reads the curves of all cells


class _CellBar(Bar):
    """A bar whose time left is ours: cells take too long for tqdm's."""

    @property
    def format_dict(self) -> dict[str, Any]:
        bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
        return {**super().format_dict, "bar_format": bar_format}


class Progress:
    """Shows what happens to the tasks of a sweep.

    Args:
        total: The number of cells.
        done: How many of them are done.
        jobs: How many tasks run at a time.
        estimate: Returns the work that is left; called now and then.
    """

    def __init__(self, total: int, done: int, jobs: int, estimate: Callable[[], Estimate]) -> None:
        self._total, self._done, self._jobs, self._estimate = total, done, jobs, estimate
        self._starts: dict[str, float] = {}
        self._estimated = self._drawn = -_INTERVAL
        self._bar: _CellBar | None = None
        if is_terminal():
            self._bar = _CellBar(total=total, initial=done, desc="cells", leave=False)

    def started(self, task: Task) -> None:
        """Says that a process has started."""
        self._starts[task.key] = time.monotonic()
        word = "resumed" if task.state is State.UNFINISHED else "started"
        self._say(f"{word}: {task.name}")

    def ended(self, task: Task) -> None:
        """Says how a task has ended, here or in another sweep."""
        state, is_cell = task.state, task.verb == "fit"
        self._done += is_cell and state is State.DONE
        parts = [f"{state}: {task.name}"]
        if task.key in self._starts:
            parts.append(format_seconds(time.monotonic() - self._starts.pop(task.key)))
        if state is State.FAILED:
            parts.append(problem(task))
        if is_cell:
            left = self._estimate().describe(self._jobs)
            parts.append(f"{self._done} of {self._total} cells done; {left}")
        self._say(", ".join(parts))

    def refresh(self) -> None:
        """Draws the bar again, with the time left."""
        now = time.monotonic()
        if self._bar is None or now - self._drawn < 1:
            return
        if now - self._estimated >= _INTERVAL:
            self._estimated = now
            seconds = self._estimate().seconds_left(self._jobs)
            text = "" if seconds is None else f"about {format_seconds(seconds)} left"
            self._bar.set_postfix_str(text, refresh=False)
        self._drawn = now
        self._bar.n = self._done
        self._bar.refresh()

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _say(self, line: str) -> None:
        print_above_bars(line, flush=True, file=sys.stdout)
