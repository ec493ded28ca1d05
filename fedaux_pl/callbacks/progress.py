"""The progress of a federation: a bar of its rounds and, below it, a bar of the current stage."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsFloat

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from fedaux_pl.callbacks.progress_bars import Bar, is_terminal, print_above_bars

LONG_STAGE = 10.0  # minimum seconds of a stage for a printed line
INTERVAL = 0.2  # minimum seconds between two drawings of a stage's bar


class Stage:
    """A stage of a run, which takes its progress."""

    def __init__(self, name: str, total: int | None, unit: str, show: Callable[..., None]) -> None:
        self.name, self.total, self.unit, self._show = name, total, unit, show
        self.started = self.shown = time.monotonic()
        self.next_line = LONG_STAGE
        self.count, self.values = 0, ""
        self.bar: Any = None
        self.is_open = True

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Report ``n`` more units, and values, which are read only when they are shown.

        Reading a tensor on a GPU in every batch would wait for its kernels.
        """
        self.count += n
        if self.is_open:
            self._show(self, values)

    def describe(self, counted: str, values: Mapping[str, SupportsFloat] | None) -> str:
        """The count and the values; without values, as the stage begins, its name."""
        if values is None:
            return self.name
        return _join(f"{counted} {self.count}{_slash(self.total)}", _format(values))

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
        self.quiet, self.bars = quiet, bars
        self._enabled = True
        self._reset()

    def _reset(self) -> None:
        self._stages: list[Stage] = []  # the current stage and the one within it
        self._rounds: Any = None
        self._last_opened = 0.0  # when the last bar of a stage was opened
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

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bars, with the arguments of the builtin."""
        print_above_bars(*args, **kwargs)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Start a stage, which ends with the context.

        Args:
            name: The name of the stage, such as "clients" or "distillation".
            total: The number of units; None if unknown.
            unit: The unit, in the singular.
        """
        stage = Stage(name, total, unit, self._show)
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
        if not self._stages and (seconds := time.monotonic() - stage.started) >= LONG_STAGE:
            self._print_line(f"{name}: {seconds:.1f} s")

    def _show(self, stage: Stage, values: Mapping[str, SupportsFloat] | None = None) -> None:
        """Show a report or, without values, that a stage begins, if it is time for it."""
        outer, now, has_bars = self._stages[0], time.monotonic(), self._has_bars()
        is_inner = stage is not outer
        if values is not None and has_bars:
            is_due = now - outer.shown >= INTERVAL
        elif values is not None:
            is_due = not is_inner and now - outer.started >= outer.next_line
        elif is_inner:  # without a total, it may report nothing until it ends
            is_due = stage.total is None and (has_bars or now - outer.shown >= LONG_STAGE)
        else:  # bars in quick succession are unreadable: some wait for the first report
            is_due = has_bars and now - self._last_opened >= INTERVAL
        if not is_due:
            return
        outer.shown = now
        if not has_bars:
            outer.next_line = 2 * (now - outer.started)
            details = stage.describe(stage.unit, values)
            self._print_line(f"{outer.name}: {details}, {now - outer.started:.0f} s")
            return
        self._last_opened = now if outer.bar is None else self._last_opened
        if not is_inner:
            outer.values = _format(values or {})
        outer.draw(stage.describe(stage.name, values) if is_inner else "")
        if self._rounds is not None and self._round_started:  # not in the preparation
            self._rounds.refresh()  # the elapsed time

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reset the state that an earlier run or a parent process left."""
        self._close()
        self._reset()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar of the rounds; a resumed run starts at its last round."""
        if self._enabled and self._has_bars():
            total, done = _total_rounds(trainer), trainer.current_epoch
            self._rounds = Bar(desc="rounds", total=total, initial=done, unit="round")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of a round; some resumed runs skip on_train_epoch_start."""
        if self._rounds is not None and not self._round_started:
            self._rounds.unpause()  # the time of the preparation does not count as a round's
        self._round_started = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the accuracy, and the best one of this fit: a resumed run does not know others."""
        metrics, names = trainer.callback_metrics, ("val/accuracy", "accuracy")
        name = next((name for name in names if name in metrics), None)
        if trainer.sanity_checking or name is None:
            return
        value = 100 * float(metrics[name])
        self._best = max(self._best, value)  # in this order NaN never wins
        self._result = f"{name} {value:.1f} %"
        if self._rounds is not None:
            self._rounds.set_postfix_str(f"{self._result} (best {self._best:.1f} %)")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the round."""
        done, total = trainer.current_epoch + 1, _total_rounds(trainer)
        if self._rounds is not None:
            if not self._round_started:  # the checkpoint was written at the end of this round
                self._rounds.initial = self._rounds.n = self._rounds.last_print_n = done
            self._rounds.update(done - self._rounds.n)
            if done == total:
                # before on_train_end: Lightning's messages would continue the line of the bar
                self._close()
        if self._round_started:
            seconds = f"{time.monotonic() - self._round_started:.1f} s"
            self._print_line(f"round {done}{_slash(total)}: {_join(self._result, seconds)}")
        self._result = ""  # the next round may have no validation

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bars."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the bars, so that the traceback starts on a new line."""
        if self._rounds is not None and isinstance(exception, KeyboardInterrupt):
            self._rounds.leave = False  # Lightning has started a new line below the bar
        self._close()

    def _close(self) -> None:
        for stage in self._stages:
            stage.close()
        if self._rounds is not None:
            self._rounds.close()
        self._stages, self._rounds = [], None

    def _has_bars(self) -> bool:
        return self.bars and is_terminal()

    def _print_line(self, text: str) -> None:
        if self._enabled and not self.quiet and not self._has_bars():
            print_above_bars(text, file=sys.stderr, flush=True)


def find_progress(trainer: pl.Trainer) -> FederationProgress:
    """The Trainer's `FederationProgress`; lines about long stages if it has another bar.

    Nothing is shown if it has no bar at all, or in other processes than the first.
    """
    callback = trainer.progress_bar_callback
    if isinstance(callback, FederationProgress):
        return callback
    return FederationProgress(quiet=callback is None or not trainer.is_global_zero, bars=False)


def _total_rounds(trainer: pl.Trainer) -> int | None:
    """The number of rounds; None if unlimited, which Lightning writes as -1."""
    return trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None


def _format(values: Mapping[str, SupportsFloat]) -> str:
    return ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def _join(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _slash(total: int | None) -> str:
    return "" if total is None else f"/{total}"
