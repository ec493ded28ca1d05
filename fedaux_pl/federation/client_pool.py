"""What a federation asks of its clients, wherever they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedaux_pl.algorithms import Update
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import PublicMap, ReleasedHead, Step


@dataclass(frozen=True)
class Votes:
    """What clients think of the models between averages and distilled ones."""

    sums: Mapping[str, Tensor]  # by architecture, one sum for each model
    clients: int  # how many were asked


class ClientPool(Protocol):
    """The clients of a run: ``LocalClients`` in this process, ``SiteClients`` at real sites."""

    at_sites: bool  # whether they are real sites, which may not answer
    round_metrics: dict[str, float]  # of the last round, e.g. which sites have answered

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return a step with the tensors that clients are sent; ``first`` are the first heads."""

    def prepare(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: let clients that have released nothing yet in this step release.

        ``maps`` has the public feature map of each architecture. Returns the heads of all
        processes, ordered by client; sites may not have answered.
        """

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: let the selected clients of this process train from the server's model.

        The server sends ``states``, theta^P of each architecture, and ``payloads`` besides.
        """

    def evaluate(self, round_: int) -> dict[str, float]:
        """Return the metrics that clients measure themselves, on test data of their own."""

    def vote(
        self,
        round_: int,
        averages: Mapping[str, State],
        students: Mapping[str, State],
        weights: Sequence[float],
    ) -> Votes:
        """Return the votes of all clients on the models between averages and students.

        ``weights`` are those of ``functional.blend_states``. Every process gets the same votes.
        """

    def finish(self, round_: int, states: Mapping[str, State]) -> None:
        """Give clients the final models."""
