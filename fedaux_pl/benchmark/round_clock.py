"""Measures the time of whole rounds, and of a plain loop that repeats them."""

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from fedaux_pl.benchmark.flops import synchronize
from fedaux_pl.benchmark.plain_rounds import PlainRounds
from fedaux_pl.modules.state_dicts import copy_state


class RoundClock(Callback):
    """Measures every round from its first hook to the first hook of the next round.

    It must be the first callback of the Trainer: then the time includes the work of the other
    callbacks, such as writing a checkpoint.

    Args:
        compare_plain: Whether to repeat every round as a plain loop, outside its measured time.

    Attributes:
        rounds: The seconds of each round.
        validations: The seconds of the validation in each round; 0 without validation.
        plain: The seconds of the plain loop for each round.
        differing: The rounds, from 1, in which the plain loop ended with other weights.
    """

    def __init__(self, compare_plain: bool = False) -> None:
        super().__init__()
        self.compare_plain = compare_plain
        self.rounds: list[float] = []
        self.validations: list[float] = []
        self.plain: list[float] = []
        self.differing: list[int] = []
        self._started = self._validation_started = 0.0
        self._initial_states: dict[str, dict[str, Tensor]] = {}
        self._plain: PlainRounds | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops the clock of the previous round and starts that of this one."""
        self._stop(pl_module)
        if self.compare_plain:
            self._plain = self._plain or PlainRounds(pl_module)
            self._initial_states = _copy_states(pl_module)
        self.validations.append(0.0)
        self._started = _now(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops the clock of the last round."""
        self._stop(pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Starts the clock of the validation."""
        self._validation_started = _now(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Stops the clock of the validation."""
        self.validations[-1] = _now(pl_module) - self._validation_started

    def _stop(self, federation: Any) -> None:
        if not self._started:
            return
        self.rounds.append(_now(federation) - self._started)
        self._started = 0.0
        if self._plain is None:
            return
        started = _now(federation)
        states = self._plain.run(len(self.rounds), self._initial_states)
        self.plain.append(_now(federation) - started)
        ours = _copy_states(federation)
        if not all(
            tensor.equal(states[name][key]) for name in ours for key, tensor in ours[name].items()
        ):
            self.differing.append(len(self.rounds))


def _now(federation: Any) -> float:
    synchronize(federation.device)
    return time.perf_counter()


def _copy_states(federation: Any) -> dict[str, dict[str, Tensor]]:
    return {name: copy_state(model) for name, model in federation.students.items()}
