"""What all parts of a running federation share, and what a round leaves to the next one."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from fedaux_pl.algorithms import ServerState, TeacherMemory
from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.stage import StageRunner
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes


@dataclass
class CarriedState:
    """What is carried from round to round besides the students.

    A round replaces entries and modifies none, so that a shallow copy holds what it began with.

    Attributes:
        memory: The logits of absent clients, for methods that remember them.
        client_optimizers: The optimizer state of each client, if these are carried.
        server_optimizers: The optimizer state of each student, if these are carried.
        client_states: What each client keeps, in methods with a payload.
        server_states: What the method keeps for its next server step, by architecture.
    """

    memory: TeacherMemory
    client_optimizers: dict[int, dict[str, Any]] = field(default_factory=dict)
    server_optimizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    client_states: dict[int, State] = field(default_factory=dict)
    server_states: dict[str, ServerState] = field(default_factory=dict)

    def copy(self) -> Self:
        """Return a copy that later rounds do not change."""
        copied = type(self)(**{name: copy.copy(value) for name, value in vars(self).items()})
        copied.memory.stored = dict(self.memory.stored)
        return copied

    def restore(self, before: Self) -> None:
        """Put back what a copy holds."""
        vars(self).update(vars(before))


@dataclass(frozen=True)
class Context:
    """The data, the tools and the seed of a run.

    Attributes:
        data: The clients' data, the auxiliary data and the test data.
        runner: Trains modules and predicts with them.
        progress: Shows the progress of stages.
        processes: The processes that share the run.
        seed: The seed of the run.
        architectures: The architecture of each client.
        carried: What is carried to the next round.
        carry_optimizers: Whether optimizer states are carried, too.
        rounds: The number of rounds; -1 if it is not known.
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: FederationProgress
    processes: Processes
    seed: int
    architectures: list[str]
    carried: CarriedState
    carry_optimizers: bool
    rounds: int

    def lr_of(self, settings: TrainingSettings, round_: int) -> Callable[[int], float] | None:
        """Return the learning rate of the steps of a round; None for that of the optimizer."""
        if not settings.is_scheduled:
            return None
        lr = settings.lr_at(round_ - 1, self.rounds)
        return lambda _: lr

    def derive_seed(self, purpose: SeedPurpose, *numbers: int) -> int:
        """Derive a seed for one purpose, e.g. from the numbers of a round and a client."""
        return derive_seed(self.seed, purpose, *numbers)
