"""The progress of a federation: a bar of its rounds and, below it, a bar of the current stage."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from fedaux_pl.callbacks import progress_bars
from fedaux_pl.callbacks.progress_bars import (
    Bar,
    BarStage,
    LineStage,
    Stage,
    format_total,
    is_terminal,
    print_above_bars,
)

__all__ = ["FederationProgress", "LineProgress", "Stage", "StageProgress", "find_progress"]

LONG_STAGE = 10.0
"""Minimum seconds of a stage for a printed line, if stderr is not a terminal."""


class _Mentions:
    """Says when a stage has been silent for so long that the stage within it is worth a line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = self._last = time.monotonic()

    def mention(self, inner: str) -> str | None:
        """The line about a stage that begins within this one; None if it is too early for one."""
        now = time.monotonic()
        if now - self._last < LONG_STAGE:
            return None
        self._last = now
        return f"{self._name}: {inner}, {now - self._started:.0f} s"


class StageProgress(Protocol):
    """Shows the progress of stages."""

    def stage(
        self, name: str, total: int | None = None, unit: str = "it"
    ) -> AbstractContextManager[Stage]:
        """Starts a stage of ``total`` units (None: unknown), which ends with the context."""


class _NoProgress:
    def stage(self, *args: object, **kwargs: object) -> AbstractContextManager[Stage]:
        return nullcontext(Stage())


class LineProgress:
    """Prints lines about long stages, beside a progress bar that knows no stages.

    The first line of a stage comes after `LONG_STAGE` seconds, the next ones after 2, 4, 8, ...
    times that, and one with its seconds at its end. A stage within a stage, without a total, has a
    line if there was none for `LONG_STAGE` seconds.
    """

    def __init__(self) -> None:
        self._mentions: _Mentions | None = None

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Starts a stage; arguments as of `FederationProgress.stage`."""
        if self._mentions is not None:
            if total is None and (line := self._mentions.mention(name)):
                print_above_bars(line, file=sys.stderr)
            yield Stage()
            return
        self._mentions, started = _Mentions(name), time.monotonic()
        try:
            yield LineStage(name, total, unit, LONG_STAGE)
        finally:
            self._mentions = None
        if (seconds := time.monotonic() - started) >= LONG_STAGE:
            print_above_bars(f"{name}: {seconds:.1f} s", file=sys.stderr)


def find_progress(trainer: pl.Trainer) -> StageProgress:
    """What shows the stages of a Trainer's run.

    Returns:
        The Trainer's `FederationProgress`; lines about long stages if it has another bar, such as
        ``RichProgressBar``; nothing if it has none, or in other processes than the first.
    """
    callback = trainer.progress_bar_callback
    if isinstance(callback, FederationProgress):
        return callback
    return LineProgress() if callback is not None and trainer.is_global_zero else _NoProgress()


class FederationProgress(ProgressBar):
    """Shows the rounds of a federation, its accuracy and the current stage.

    If stderr is a terminal, these are two bars. Otherwise it prints one line per round, and one
    per stage of at least `LONG_STAGE` seconds. A stage within a stage is a note on the outer bar,
    or, without a total, a line if there was none for `LONG_STAGE` seconds; deeper stages are not
    shown.

    Lightning refuses a Trainer with both this callback and ``enable_progress_bar=False``
    (MisconfigurationException): leave one of them out.

    Args:
        metric: The logged metric (0 to 1) to show after every validation; where it is measured on
            validation data, ``val/`` stands before its name. The best value is that of the current
            ``fit``; a resumed run does not know earlier ones.
        quiet: Whether to print no lines if stderr is not a terminal; bars are not affected.
    """

    def __init__(self, metric: str = "accuracy", quiet: bool = False) -> None:
        super().__init__()
        self.metric = metric
        self.quiet = quiet
        self._enabled = True
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._rounds: Any = None
        self._stage: BarStage | None = None
        self._mentions = _Mentions("")
        self._last_opened = 0.0  # when the last bar of a stage was opened
        self._round_started = 0.0  # 0 before the first round
        self._best = float("-inf")
        self._result = ""

    def __getstate__(self) -> dict[str, Any]:
        """Drops the bars, whose terminal and lock cannot be pickled."""
        return {**self.__dict__, "_rounds": None, "_stage": None}

    @property
    def is_enabled(self) -> bool:
        """Whether progress is shown: not if disabled, and not in a forked process."""
        return self._enabled and os.getpid() == self._process

    def disable(self) -> None:
        """Closes the bars and shows no progress from now on."""
        self._close()
        self._enabled = False

    def enable(self) -> None:
        """Shows progress again: stages at once, rounds from the next fit on."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bars, with the arguments of the builtin."""
        print_above_bars(*args, **kwargs)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Starts a stage, which ends with the context.

        Args:
            name: The name of the stage, such as "clients" or "distillation".
            total: The number of units; None if unknown.
            unit: The unit, in the singular.

        Yields:
            The stage, whose ``update`` takes the progress.
        """
        if not self.is_enabled:
            yield Stage()
        elif self._stage is not None:
            if total is None and (line := self._mentions.mention(name)):
                self._print_line(line)
            with self._stage.nested(name, total) as inner:
                yield inner
        else:
            started = time.monotonic()
            self._mentions = _Mentions(name)
            # the bars of stages in quick succession would be unreadable
            draw_now = started - self._last_opened >= progress_bars.INTERVAL
            options: dict[str, Any] = {"desc": name, "total": total, "unit": unit}
            self._stage = stage = BarStage(
                draw_now, self._refresh_rounds, lambda: self.is_enabled, **options
            )
            try:
                yield stage
            finally:
                self._last_opened = max(self._last_opened, stage.opened)
                self._stage = None
                stage.close()
            if (seconds := time.monotonic() - started) >= LONG_STAGE:
                self._print_line(f"{name}: {seconds:.1f} s")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Resets the state that an earlier run or a parent process left."""
        self._reset()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the bar of the rounds; a resumed run starts at its last round."""
        if self.is_enabled and is_terminal():
            total, done = _total_rounds(trainer), trainer.current_epoch
            self._rounds = Bar(desc="rounds", total=total, initial=done, unit="round")

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Starts the clock of a round; some resumed runs skip on_train_epoch_start."""
        if self._rounds is not None and not self._round_started:
            self._rounds.unpause()  # the time of the preparation does not count as a round's
        self._round_started = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Shows the accuracy."""
        metrics, names = trainer.callback_metrics, (f"val/{self.metric}", self.metric)
        name = next((name for name in names if name in metrics), None)
        if trainer.sanity_checking or name is None:
            return
        value = 100 * float(metrics[name])
        self._best = max(self._best, value)  # in this order NaN never wins
        self._result = f"{name} {value:.1f} %"
        if self._rounds is not None:
            self._rounds.set_postfix_str(f"{self._result} (best {self._best:.1f} %)")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the round."""
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
            results = ", ".join(filter(None, (self._result, seconds)))
            self._print_line(f"round {done}{format_total(total)}: {results}")
        self._result = ""  # the next round may have no validation

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Closes the bars."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Closes the bars, so that the traceback starts on a new line."""
        if self._rounds is not None and isinstance(exception, KeyboardInterrupt):
            self._rounds.leave = False  # Lightning has started a new line below the bar
        self._close()

    def _close(self) -> None:
        if self._stage is not None:
            self._stage.close()
        if self._rounds is not None:
            self._rounds.close()
        self._stage = self._rounds = None

    def _print_line(self, text: str) -> None:
        if self.is_enabled and not self.quiet and not is_terminal():
            print(text, file=sys.stderr, flush=True)

    def _refresh_rounds(self) -> None:
        """Updates the elapsed time of the rounds' bar, which does not run in the preparation."""
        if self._rounds is not None and self._round_started:
            self._rounds.refresh()


def _total_rounds(trainer: pl.Trainer) -> int | None:
    """The number of rounds; None if unlimited, which Lightning writes as -1."""
    return trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
