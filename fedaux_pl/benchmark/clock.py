"""The time of whole rounds, and of a plain loop that does the same beside them."""

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from fedaux_pl.benchmark.arithmetic import synchronize
from fedaux_pl.benchmark.plain import PlainRounds
from fedaux_pl.models.states import copy_state


class RoundClock(Callback):
    """Takes the time of every round from its first hook to that of the next.

    It has to come before all other callbacks of the Trainer, so that what they do in a round,
    such as writing a checkpoint, belongs to it.

    Args:
        compare_plain: Whether every round is done again by a plain loop, after the clock of the
            round has stopped.

    Attributes:
        rounds: The seconds of each round.
        validations: The seconds of the validation in it; 0 where there was none.
        plain: The seconds of the plain loop for the same round.
        differing: The rounds in which the plain loop came to other weights.
    """

    def __init__(self, compare_plain: bool = False) -> None:
        super().__init__()
        self.compare_plain = compare_plain
        self.rounds: list[float] = []
        self.validations: list[float] = []
        self.plain: list[float] = []
        self.differing: list[int] = []
        self._began = self._validation_began = 0.0
        self._before: dict[str, dict[str, Tensor]] = {}
        self._plain: PlainRounds | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops the clock of the round before, and starts it for this one."""
        self._stop(pl_module)
        if self.compare_plain:
            self._plain = self._plain or PlainRounds(pl_module)
            self._before = _copies(pl_module)
        self.validations.append(0.0)
        self._began = _now(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops the clock of the last round."""
        self._stop(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Starts the clock of the validation."""
        self._validation_began = _now(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops it."""
        self.validations[-1] = _now(pl_module) - self._validation_began

    def _stop(self, federation: Any) -> None:
        if not self._began:
            return
        self.rounds.append(_now(federation) - self._began)
        self._began = 0.0
        if self._plain is None:
            return
        began = _now(federation)
        states = self._plain.run(len(self.rounds), self._before)
        self.plain.append(_now(federation) - began)
        ours = _copies(federation)
        if not all(
            tensor.equal(states[name][key]) for name in ours for key, tensor in ours[name].items()
        ):
            self.differing.append(len(self.rounds))


def _now(federation: Any) -> float:
    synchronize(federation.device)
    return time.perf_counter()


def _copies(federation: Any) -> dict[str, dict[str, Tensor]]:
    return {name: copy_state(model) for name, model in federation.students.items()}
