"""What all parts of a running federation share, and what a round leaves to the next one."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor, nn

from fedaux_pl.algorithms import ServerState, TeacherMemory
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine import SeedPurpose, StageRunner, predict_features
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes


@dataclass
class CarriedState:
    """What is carried from round to round besides the students.

    A round replaces entries and modifies none, so that a shallow copy holds what it began with.
    """

    memory: TeacherMemory = field(default_factory=dict)  # for methods that remember teachers
    client_optimizers: dict[int, dict[str, Any] | None] = field(default_factory=dict)  # if kept
    client_states: dict[int, State] = field(default_factory=dict)  # what each client keeps
    server_states: dict[str, ServerState] = field(default_factory=dict)  # for the next server step
    votes: Mapping[str, Tensor] = field(default_factory=dict)  # of the clients, for each candidate

    def copy(self) -> Self:
        """Return a copy that later rounds do not change."""
        return type(self)(**{name: copy.copy(value) for name, value in vars(self).items()})

    def restore(self, before: Self) -> None:
        """Put back what a copy holds."""
        vars(self).update(vars(before))


@dataclass(frozen=True)
class Context:
    """The data, the tools and the seed of a run."""

    data: FederatedDataModule
    runner: StageRunner
    progress: FederationProgress
    processes: Processes
    seed: int
    architectures: list[str]  # of each client
    carried: CarriedState
    rounds: int  # -1 if it is not known

    def lr_of(self, settings: TrainingSettings, round_: int) -> Callable[[int], float] | None:
        """Return the learning rate of the steps of a round; None for that of the optimizer."""
        if not settings.is_scheduled:
            return None
        lr = settings.lr_at(round_ - 1, self.rounds)
        return lambda _: lr

    def derive_seed(self, purpose: SeedPurpose, *numbers: int) -> int:
        """Derive a seed for one purpose, e.g. from the numbers of a round and a client."""
        return derive_seed(self.seed, purpose, *numbers)


class ServerFeatures:
    """h_0(x) on D_aux, computed once, on its parts D^- and D_distill, and on the evaluated data.

    ``h0`` has h_0 of each architecture, and ``predict`` computes h_0(x) on D_aux.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        h0: Mapping[str, nn.Module],
        predict: Callable[[nn.Module, Inputs], Tensor] = predict_features,
    ) -> None:
        self.data = data
        self.h0 = h0
        self._predict = predict
        self._auxiliary: dict[str, Tensor] = {}

    def auxiliary(self, architecture: str) -> Tensor:
        """Return h_0(x) on D_aux, shape (N, d)."""
        if architecture not in self._auxiliary:
            inputs = self.data.auxiliary_inputs
            self._auxiliary[architecture] = self._predict(self.h0[architecture], inputs)
        return self._auxiliary[architecture]

    def negatives(self, architecture: str) -> Tensor:
        """Return h_0(x) on D^-, shape (|D^-|, d)."""
        return self.auxiliary(architecture)[self.data.auxiliary_rows["negatives"]]

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return h_0(x) on D_distill and on the evaluated data, by part and architecture."""
        rows = self.data.auxiliary_rows["distill"]
        evaluated = self.data.evaluation_examples.inputs
        return {
            "distill": {name: self.auxiliary(name)[rows] for name in self.h0},
            "evaluation": {name: predict_features(h0, evaluated) for name, h0 in self.h0.items()},
        }
