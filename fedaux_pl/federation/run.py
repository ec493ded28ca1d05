"""What all parts of a running federation work with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedaux_pl.callbacks.progress import FederationProgress, find_progress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine import SeedPurpose, StageRunner
from fedaux_pl.federation.create_runner import Acceleration, create_runner
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.functional import derive_seed
from fedaux_pl.lightning import pl
from fedaux_pl.processes import Processes


@dataclass(frozen=True)
class Run:
    """The data, the tools and the seed of a run.

    Attributes:
        data: The private data of the clients, and the server's data.
        runner: Runs stages of training and predicts, on the Trainer's device and precision.
        progress: Shows how far a stage is.
        processes: The processes that share the clients.
        seed: The seed from which all others are derived.
        architectures: The architecture of each client.
        rounds: The number of rounds; -1 if it is not known.
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: FederationProgress
    processes: Processes
    seed: int
    architectures: list[str]
    rounds: int

    def lr_of(self, settings: TrainingSettings, round_: int) -> Callable[[int], float] | None:
        """Return the learning rate of the steps of a round; None for that of the optimizer."""
        if not settings.is_scheduled:
            return None
        lr = settings.lr_at(round_ - 1, self.rounds)
        return lambda _: lr

    def derive_seed(self, purpose: SeedPurpose, *numbers: int) -> int:
        """Derive a seed for one purpose, for example from the numbers of a round and a client."""
        return derive_seed(self.seed, purpose, *numbers)

    @property
    def is_trial(self) -> bool:
        """Whether the Trainer's ``fast_dev_run`` only tries whether everything runs."""
        return bool(self.runner.trainer.fast_dev_run)  # type: ignore[attr-defined]


def create_run(
    trainer: pl.Trainer,
    data: FederatedDataModule,
    processes: Processes,
    seed: int,
    architectures: Sequence[str],
    acceleration: Acceleration,
) -> Run:
    """Create what all parts of a run work with; ``architectures`` names that of each client."""
    progress = find_progress(trainer)
    runner = create_runner(trainer, acceleration)
    runner.preparing = progress.stage
    rounds = trainer.max_epochs or -1
    return Run(data, runner, progress, processes, seed, list(architectures), rounds)
