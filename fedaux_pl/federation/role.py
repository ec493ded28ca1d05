"""What a fit of a federation does in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.lightning import pl
from fedaux_pl.scoring import Guarantee


class PreparationPhase(Protocol):
    """Algorithm 1, which a role runs as a whole, or only up to h_0."""

    def prepare(self, preparation: Preparation) -> None:
        """Learn h_0, let every client release, and compute the scores."""

    def learn_h0(self, preparation: Preparation) -> None:
        """Learn or read h_0."""

    def extractors(self) -> dict[str, nn.Module]:
        """Return h_0 of each architecture; empty before it is learned."""


class Role:
    """A simulation: this process runs the server and all clients.

    ``federation.role = LearnH0()`` gives a federation another one.
    """

    has_rounds = True  # whether rounds follow ``run``
    kept: Path | None = None  # the folder of each h_0 that is never learned again
    announces_duration = True
    privacy_notes: Sequence[str] = ()  # what else leaves the clients, a sentence each
    unprotected: Sequence[Guarantee] = ()  # the same as rows of the table of guarantees

    def check(self, trainer: pl.Trainer) -> None:
        """Raise a ConfigurationError if the role does not fit the Trainer."""
        if self.has_rounds:
            return
        for name in ("min_steps", "min_epochs"):
            value = getattr(trainer, name)
            if value:
                raise ConfigurationError(
                    f"got trainer.{name} = {value}; expected none, because "
                    f"{type(self).__name__} runs no round: set it to null"
                )

    def create_pool(self, clients: LocalClients) -> ClientPool:
        """Return the clients that the server asks; ``clients`` would run in this process."""
        return clients

    def run(self, phase: PreparationPhase, preparation: Preparation) -> None:
        """Do what comes before the rounds, or instead of them."""
        phase.prepare(preparation)


class LearnH0(Role):
    """Learn h_0 alone, and measure it if the private data are here."""

    has_rounds = False

    def __init__(self) -> None:
        self.accuracy: dict[str, float] = {}  # by kNN, of each architecture

    def run(self, phase: PreparationPhase, preparation: Preparation) -> None:
        """Learn h_0 and keep it in the cache."""
        phase.learn_h0(preparation)
        if not preparation.context.data.at_sites:
            for name, extractor in phase.extractors().items():
                self.accuracy[name] = preparation.knn_accuracy(extractor)
