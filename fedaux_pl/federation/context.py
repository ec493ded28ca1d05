"""What all parts of a running federation share."""

from dataclasses import dataclass

from fedaux_pl.callbacks.progress import FederationProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.stage import StageRunner
from fedaux_pl.functional import derive_seed
from fedaux_pl.processes import Processes


@dataclass(frozen=True)
class Context:
    """The data, the tools and the seed of a run.

    Attributes:
        data: The clients' data, the auxiliary data and the test data.
        runner: Trains modules and predicts with them.
        progress: Shows the progress of stages.
        processes: The processes that share the run.
        seed: The seed of the run.
        carry_optimizers: Whether optimizer states are carried to the next round.
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: FederationProgress
    processes: Processes
    seed: int
    carry_optimizers: bool

    def derive_seed(self, purpose: SeedPurpose, *numbers: int) -> int:
        """Derives a seed for one purpose, e.g. from the numbers of a round and a client."""
        return derive_seed(self.seed, purpose, *numbers)
