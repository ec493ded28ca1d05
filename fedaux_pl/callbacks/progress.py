"""How far a federation is: a bar for its rounds and, beneath it, one for the stage at work."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, SupportsFloat

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from tqdm import tqdm  # type: ignore[import-untyped]

INTERVAL = 0.2
"""Seconds between two drawings of a stage: anything faster is flicker."""

WIDE = 96
"""Columns from which on a bar has room for the rate too."""

LONG_STAGE = 10.0
"""Seconds from which on a stage is worth a line where there is no terminal."""


class Stage:
    """What the work of a stage reports to. This one, the stand-in's, shows nothing."""

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        """Reports work done.

        Args:
            n: How many units were completed since the last report.
            **values: Numbers to show beside the bar. They are read only when the bar is drawn, so
                that a tensor in every batch's report does not make the host wait for the device.
        """


class StageProgress(Protocol):
    """Where an engine announces its stages."""

    def stage(
        self, name: str, total: int | None = None, unit: str = "it"
    ) -> AbstractContextManager[Stage]:
        """Announces a stage of ``total`` units (None: not known), which ends with the context."""


class _Silence:
    def stage(self, *args: object, **kwargs: object) -> AbstractContextManager[Stage]:
        return nullcontext(Stage())


def find_progress(trainer: pl.Trainer) -> StageProgress:
    """The trainer's `FederationProgress`, or a silent stand-in where it has none."""
    callback = trainer.progress_bar_callback
    return callback if isinstance(callback, FederationProgress) else _Silence()


class FederationProgress(ProgressBar):
    """Shows the rounds of a federation, the accuracy so far and the stage at work.

    If stderr is a terminal, these are two bars. Anywhere else there is one line for every round
    and for every stage of `LONG_STAGE` seconds or more. A stage within a stage is a note on the
    outer one's bar, and what is nested deeper is not shown.

    Lightning refuses a Trainer that has both this callback and ``enable_progress_bar=False``
    (MisconfigurationException): leave the callback out then.

    Args:
        metric: Name of the logged fraction (0 to 1) to show after every validation. The best one
            shown is that of the current ``fit``; a resumed run does not know of earlier ones.
        quiet: Prints no lines where there is no terminal. Bars are not affected.
    """

    def __init__(self, metric: str = "accuracy", quiet: bool = False) -> None:
        super().__init__()
        self.metric = metric
        self.quiet = quiet
        self._enabled = True
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._rounds: Any = None
        self._stage: _BarStage | None = None
        self._opened = 0.0  # when a stage last drew its bar
        self._began = 0.0  # when the present round began; 0 before the first one
        self._best = float("-inf")
        self._note = ""

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the bars behind: the terminal and the lock they hold cannot be pickled."""
        return {**self.__dict__, "_rounds": None, "_stage": None}

    @property
    def is_enabled(self) -> bool:
        """Whether progress is shown: not if disabled, and not by a fork of the process."""
        return self._enabled and os.getpid() == self._process

    def disable(self) -> None:
        """Closes the bars and shows nothing from now on."""
        self._close()
        self._enabled = False

    def enable(self) -> None:
        """Shows progress again: stages at once, rounds from the next fit on."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bars; takes what the builtin takes."""
        with tqdm.external_write_mode(file=kwargs.get("file")):
            print(*args, **kwargs)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "it") -> Iterator[Stage]:
        """Announces a stage, which ends with the context.

        Args:
            name: What is being done, such as "clients" or "distillation".
            total: How many units there are to do; None if that is not known.
            unit: What is counted, in the singular.

        Yields:
            The stage, to whose ``update`` the work is reported.
        """
        if not self.is_enabled:
            yield Stage()
        elif self._stage is not None:
            with self._stage.nested(name, total) as inner:
                yield inner
        else:
            began = time.monotonic()
            self._stage = stage = _BarStage(self, desc=name, total=total, unit=unit)
            try:
                yield stage
            finally:
                self._stage = None
                stage.close()
            if (seconds := time.monotonic() - began) >= LONG_STAGE:
                self._line(f"{name}: {seconds:.1f} s")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Starts afresh, whatever an earlier run or the process this one is a fork of left."""
        self._forget()
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the bar of the rounds, past those that a resumed run has behind it."""
        if self.is_enabled and _on_terminal():
            self._rounds = _Bar(
                desc="rounds", total=_total(trainer), initial=trainer.current_epoch, unit="round"
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Starts the clock of a round (not on_train_epoch_start, which some resumed runs skip)."""
        if self._rounds is not None and not self._began:
            self._rounds.unpause()  # the preparation says nothing about the time that a round takes
        self._began = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes down the accuracy."""
        if trainer.sanity_checking or self.metric not in trainer.callback_metrics:
            return
        value = 100 * float(trainer.callback_metrics[self.metric])
        self._best = max(self._best, value)  # in this order NaN never wins
        self._note = f"{self.metric} {value:.1f} %"
        if self._rounds is not None:
            self._rounds.set_postfix_str(f"{self._note} (best {self._best:.1f} %)")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the round."""
        done, total = trainer.current_epoch + 1, _total(trainer)
        if self._rounds is not None:
            if not self._began:  # an earlier run did this round, and saved just before its end
                self._rounds.initial = self._rounds.n = self._rounds.last_print_n = done
            self._rounds.update(done - self._rounds.n)
            if done == total:
                # Before on_train_end: what Lightning logs until then would join the bar's line.
                self._close()
        if self._began:
            results = filter(None, (self._note, f"{time.monotonic() - self._began:.1f} s"))
            self._line(f"round {done}{_of(total)}: {', '.join(results)}")
        self._note = ""  # the next round may go without validation

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Closes the bars."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Closes the bars, so that the traceback starts on a line of its own."""
        if self._rounds is not None and isinstance(exception, KeyboardInterrupt):
            self._rounds.leave = False  # Lightning has begun a new line, and the bar is above it
        self._close()

    def _close(self) -> None:
        if self._stage is not None:
            self._stage.close()
        if self._rounds is not None:
            self._rounds.close()
        self._stage = self._rounds = None

    def _line(self, text: str) -> None:
        if self.is_enabled and not self.quiet and not _on_terminal():
            print(text, file=sys.stderr, flush=True)

    def _tick(self) -> None:
        """Moves the clock of the rounds on, which stands still during the preparation."""
        if self._rounds is not None and self._began:
            self._rounds.refresh()


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no thread to redraw idle bars: it buys nothing here, and forks lose it

    def __init__(self, **options: Any) -> None:
        self._process = os.getpid()
        # Drawn at every update: with tqdm's own limit, refresh() in between would spoil the rate.
        super().__init__(**options, file=sys.stderr, dynamic_ncols=True, mininterval=0, miniters=0)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Chooses the form: tqdm would cut off the end, and the accuracy with it."""
        fields: dict[str, Any] = super().format_dict
        if fields["total"] is None:
            fields["bar_format"] = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"
        elif fields["ncols"] and fields["ncols"] < WIDE:
            fields["bar_format"] = (
                "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            )
        return fields

    def close(self) -> None:
        """Closes the bar; not in a fork, which would wipe it off the first process's screen."""
        if os.getpid() == self._process:
            super().close()


class _BarStage(Stage):
    """A stage with a bar of its own."""

    def __init__(self, owner: FederationProgress, **options: Any) -> None:
        self._owner = owner
        self._options = options
        self._bar: Any = None
        self._open = _on_terminal()
        self._began, self._drawn = time.time(), time.monotonic()
        self._n = 0
        self._values = ""
        self._nested = False
        # Stages that follow each other faster than one can read wait for a report to be drawn.
        if self._open and self._drawn - owner._opened >= INTERVAL:
            self.draw()

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        self._n += n
        if self.is_due():
            self._values = _text(values)
            self.draw()

    @contextmanager
    def nested(self, name: str, total: int | None) -> Iterator[Stage]:
        if self._nested:
            yield Stage()
            return
        self._nested = True
        try:
            yield _NoteStage(self, name, total)
        finally:
            self._nested = False  # the note stays till the next drawing, lest it flicker

    def is_due(self) -> bool:
        due = self._open and time.monotonic() - self._drawn >= INTERVAL
        return due and self._owner.is_enabled

    def draw(self, note: str = "") -> None:
        self._drawn = time.monotonic()
        if self._bar is None:
            self._owner._opened = self._drawn
            self._bar = _Bar(**self._options, leave=False)
            self._bar.start_t = self._bar.last_print_t = self._began
        self._bar.set_postfix_str(", ".join(filter(None, (self._values, note))), refresh=False)
        if self._n == self._bar.n:
            self._bar.refresh()
        else:
            self._bar.update(self._n - self._bar.n)
        self._owner._tick()

    def close(self) -> None:
        self._open = False
        if self._bar is not None:
            self._bar.close()


class _NoteStage(Stage):
    """A stage within another, on whose bar it leaves a note."""

    def __init__(self, outer: _BarStage, name: str, total: int | None) -> None:
        self._outer = outer
        self._name = name
        self._total = total
        self._n = 0

    def update(self, n: int = 1, **values: SupportsFloat) -> None:
        self._n += n
        if self._outer.is_due():
            count = f"{self._name} {self._n}{_of(self._total)}"
            self._outer.draw(", ".join(filter(None, (count, _text(values)))))


def _text(values: Mapping[str, SupportsFloat]) -> str:
    return ", ".join(f"{name} {float(value):.4g}" for name, value in values.items())


def _of(total: int | None) -> str:
    return "" if total is None else f"/{total}"


def _total(trainer: pl.Trainer) -> int | None:
    """The number of rounds; None if there is no limit, which Lightning writes as -1."""
    return trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
