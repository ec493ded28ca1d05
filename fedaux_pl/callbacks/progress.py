"""The progress of a federation: a bar of its rounds and, below it, a bar of the current stage."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, SupportsFloat

from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.lightning import ProgressBar, pl

LONG_STAGE = 10.0  # minimum seconds of a stage for a printed line
INTERVAL = 0.2  # minimum seconds between two drawings of the bars of stages
MIN_RATE_COLUMNS = 96  # minimum columns of a terminal for a bar with its rate


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
            count = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            fields["bar_format"] = "{l_bar}{bar}| " + count
        return fields

    def close(self) -> None:
        """Close the bar; not in a forked process, which would erase it from the screen."""
        if os.getpid() == self._process:
            super().close()


def print_above_bars(*args: Any, **kwargs: Any) -> None:
    """Print with the arguments of the builtin, above all bars of tqdm."""
    with tqdm.external_write_mode(file=kwargs.get("file")):
        print(*args, **kwargs)


@dataclass
class Stage:
    """A stage of a run, which takes its progress."""

    name: str
    total: int | None
    unit: str
    show: Callable[..., None]
    started: float
    next_line: float = LONG_STAGE
    count: int = 0
    values: str = ""
    bar: Any = None
    is_open: bool = True

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Report ``n`` more units, and values, which are read only when they are shown.

        Reading a tensor on a GPU in every batch would wait for its kernels.
        """
        self.count += n
        if self.is_open:
            self.show(self, values)

    def draw(self, note: str) -> None:
        """Draw the bar, with a note at its end."""
        if self.bar is None:
            self.bar = Bar(desc=self.name, total=self.total, unit=self.unit, leave=False)
            began = time.time() - (time.monotonic() - self.started)
            self.bar.start_t = self.bar.last_print_t = began
        self.bar.set_postfix_str(_join(self.values, note), refresh=False)
        if self.count == self.bar.n:
            self.bar.refresh()  # update(0) would distort the rate
        else:
            self.bar.update(self.count - self.bar.n)

    def close(self) -> None:
        """Remove the bar; later reports are not shown."""
        self.is_open = False
        if self.bar is not None:
            self.bar.close()


class FederationProgress(ProgressBar):
    """Shows the rounds of a federation, its accuracy and the current stage.

    If stderr is a terminal, these are two bars, and a stage within a stage is a note on the outer
    bar. Otherwise it prints one line per round, and lines about stages of at least `LONG_STAGE`
    seconds: after that time, after 2, 4, 8, ... times that, and at the end. A stage within a stage,
    without a total, has a line if there was none for `LONG_STAGE` seconds.

    Lightning refuses a Trainer with both this callback and ``enable_progress_bar=False``
    (MisconfigurationException): leave one of them out.

    Args:
        quiet: Whether to print no lines; bars are not affected.
        bars: Whether to draw bars if stderr is a terminal.
    """

    def __init__(self, quiet: bool = False, bars: bool = True) -> None:
        super().__init__()
        self.quiet = quiet
        self.bars = bars
        self._enabled = True
        self._reset()

    def _reset(self) -> None:
        self._stages: list[Stage] = []  # the current stage and the one within it
        self._rounds: Any = None
        self._total: int | None = None  # rounds; None if unlimited
        self._shown = 0.0  # when a stage was drawn, or printed
        self._round_started = 0.0  # 0 before the first round
        self._best = float("-inf")
        self._result = ""

    def __getstate__(self) -> dict[str, Any]:
        """Drop the bars, whose terminal and lock cannot be pickled."""
        return {**self.__dict__, "_rounds": None, "_stages": []}

    def disable(self) -> None:
        """Close the bars and show no progress from now on."""
        self._close()
        self._enabled = False

    def enable(self) -> None:
        """Show progress again: stages at once, rounds from the next fit on."""
        self._enabled = True

    print = staticmethod(print_above_bars)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Start a stage, such as "clients" of a ``total`` of units; it ends with the context."""
        stage = Stage(name, total, unit, self._show, started=time.monotonic())
        if not self._enabled or len(self._stages) == 2:  # deeper stages are not shown
            stage.is_open = False
            yield stage
            return
        self._stages.append(stage)
        self._show(stage)
        try:
            yield stage
        finally:
            stage.close()
            self._stages = [other for other in self._stages if other.is_open]
        seconds = time.monotonic() - stage.started
        if not self._stages and seconds >= LONG_STAGE:
            self._print_line(f"{name}: {seconds:.1f} s")

    def _show(self, stage: Stage, values: Mapping[str, SupportsFloat] | None = None) -> None:
        """Show a report or, without values, that a stage begins, if it is time for it."""
        outer = self._stages[0]
        now = time.monotonic()
        elapsed = now - outer.started
        if not self._is_due(stage, values is None, now):
            return
        self._shown = now
        shown = ", ".join(f"{key} {float(value):.4g}" for key, value in (values or {}).items())
        count = f"{stage.count}" if stage.total is None else f"{stage.count}/{stage.total}"
        if not self._has_bars():
            outer.next_line = 2 * elapsed
            details = stage.name
            if stage is outer:
                details = _join(f"{stage.unit} {count}", shown)
            self._print_line(f"{outer.name}: {details}, {elapsed:.0f} s")
            return
        if stage is outer:
            outer.values = shown
            outer.draw("")
        else:
            name = stage.name if values is None else f"{stage.name} {count}"
            outer.draw(_join(name, shown))
        if self._rounds is not None and self._round_started:  # not in the preparation
            self._rounds.refresh()  # the elapsed time

    def _is_due(self, stage: Stage, begins: bool, now: float) -> bool:
        """Whether it is time to show that a stage begins, or what it reports."""
        outer = self._stages[0]
        if begins and stage is not outer:  # without a total, it may report nothing until it ends
            silent = now - max(outer.started, self._shown)
            return stage.total is None and (self._has_bars() or silent >= LONG_STAGE)
        if self._has_bars():  # bars in quick succession are unreadable
            return now - self._shown >= INTERVAL
        if begins or stage is not outer:
            return False
        return now - outer.started >= outer.next_line

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Reset the state that an earlier run or a parent process left."""
        self._close()
        self._reset()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Open the bar of the rounds; a resumed run starts at its last round."""
        self._total = None if trainer.max_epochs == -1 else trainer.max_epochs
        if self._enabled and self._has_bars():
            self._rounds = Bar(
                desc="rounds", total=self._total, initial=trainer.current_epoch, unit="round"
            )

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock of a round; some resumed runs skip on_train_epoch_start."""
        if self._rounds is not None and not self._round_started:
            self._rounds.unpause()  # the time of the preparation does not count as a round's
        self._round_started = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Show the accuracy, and the best one of this fit: a resumed run does not know others."""
        metrics = trainer.callback_metrics
        name = "val/accuracy" if "val/accuracy" in metrics else "accuracy"
        if trainer.sanity_checking or name not in metrics:
            return
        value = 100 * float(metrics[name])
        self._best = max(self._best, value)  # in this order NaN never wins
        self._result = f"{name} {value:.1f} %"
        if self._rounds is not None:
            self._rounds.set_postfix_str(f"{self._result} (best {self._best:.1f} %)")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Count the round."""
        done = trainer.current_epoch + 1
        if self._rounds is not None:
            if not self._round_started:  # the checkpoint was written at the end of this round
                self._rounds.initial = self._rounds.n = self._rounds.last_print_n = done
            self._rounds.update(done - self._rounds.n)
            if done == self._total:
                # before on_train_end: Lightning's messages would continue the line of the bar
                self._close()
        if self._round_started:
            number = f"{done}" if self._total is None else f"{done}/{self._total}"
            seconds = f"{time.monotonic() - self._round_started:.1f} s"
            self._print_line(f"round {number}: {_join(self._result, seconds)}")
        self._result = ""  # the next round may have no validation

    def on_train_end(self, *_: Any) -> None:
        """Close the bars."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bars, so that the traceback starts on a new line."""
        if self._rounds is not None and isinstance(exception, KeyboardInterrupt):
            self._rounds.leave = False  # Lightning has started a new line below the bar
        self._close()

    def _close(self) -> None:
        for bar in (*self._stages, self._rounds):
            if bar is not None:
                bar.close()
        self._stages = []
        self._rounds = None

    def _has_bars(self) -> bool:
        return self.bars and sys.stderr is not None and sys.stderr.isatty()

    def _print_line(self, text: str) -> None:
        if self._enabled and not self.quiet and not self._has_bars():
            print_above_bars(text, file=sys.stderr, flush=True)


def find_progress(trainer: pl.Trainer) -> FederationProgress:
    """Return the Trainer's `FederationProgress`; lines about long stages if it has another bar.

    Nothing is shown if it has no bar at all, or in other processes than the first.
    """
    callback = trainer.progress_bar_callback
    if isinstance(callback, FederationProgress):
        return callback
    return FederationProgress(quiet=callback is None or not trainer.is_global_zero, bars=False)


def _join(*texts: str) -> str:
    return ", ".join(filter(None, texts))
