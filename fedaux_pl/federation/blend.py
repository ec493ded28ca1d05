"""Where the server's new model lies between the average and the distilled model.

    theta(lambda) = theta_avg + lambda (theta_dist - theta_avg)

The paper has no lambda: its new model is the distilled one, lambda = 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.settings import Blend
from fedaux_pl.federation.state import RunState
from fedaux_pl.functional import blend_states, most_votes
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import state_bytes

CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The weights lambda that clients vote on."""
VOTE_DISCOUNT = 0.7
"""How much votes of the round before count."""


@dataclass(frozen=True)
class Blended:
    """The server's new models by architecture, and metrics of the choice."""

    models: Mapping[str, State]
    metrics: Mapping[str, float]


class Blender(Protocol):
    """Chooses the server's new models."""

    def blend(
        self, t: int, averages: Mapping[str, State], distilled: Mapping[str, State]
    ) -> Blended:
        """Return a model between the average and the distilled one, for each architecture."""


@dataclass(frozen=True)
class FixedBlend:
    """The same lambda in every round.

    Examples:
        >>> import torch
        >>> average, distilled = ({"resnet8": {"w": torch.tensor([x])}} for x in (0.0, 4.0))
        >>> FixedBlend(0.25).blend(1, average, distilled).models
        {'resnet8': {'w': tensor([1.])}}
    """

    weight: float

    def blend(
        self, t: int, averages: Mapping[str, State], distilled: Mapping[str, State]
    ) -> Blended:
        """Return theta(lambda) of each architecture."""
        models = {}
        for name, student in distilled.items():
            models[name] = blend_states(averages[name], student, self.weight)
        return Blended(models, {})


@dataclass(frozen=True)
class Vote:
    """The clients vote in every round for one lambda of ``CANDIDATES``, for each architecture.

    Votes of earlier rounds count, too, discounted in every round. Among equal sums the candidate
    nearest to the average wins.

    Attributes:
        pool: The clients.
        state: Keeps the votes for the next round.
    """

    pool: ClientPool
    state: RunState

    def blend(
        self, t: int, averages: Mapping[str, State], distilled: Mapping[str, State]
    ) -> Blended:
        """Return theta(lambda) of each architecture, with the lambda that has most votes."""
        cast = self.pool.vote(t, averages, distilled, CANDIDATES)
        models = {}
        votes = {}
        metrics: dict[str, float] = {}
        for name, sums in cast.sums.items():
            votes[name] = sums
            if name in self.state.votes:
                votes[name] = sums + VOTE_DISCOUNT * self.state.votes[name]
            weight = CANDIDATES[most_votes(votes[name].tolist())]
            models[name] = blend_states(averages[name], distilled[name], weight)
            metrics[f"blend/{name}"] = weight
            for candidate, total in zip(CANDIDATES, sums.tolist(), strict=True):
                metrics[f"votes/{name}/{candidate:g}"] = total
        self.state.votes = votes
        if cast.clients:
            metrics["votes/clients"] = cast.clients
        return Blended(models, metrics)


def create_blender(blend: Blend, pool: ClientPool, state: RunState) -> Blender:
    """Create what the option ``distillation.blend`` asks for: a fixed lambda, or a vote."""
    return Vote(pool, state) if blend == "vote" else FixedBlend(float(blend))


def vote_traffic(metrics: Mapping[str, float], models: State) -> tuple[float, float]:
    """Return the bytes of a round's vote, from the clients and to them.

    A client sends a number for each candidate, and gets the averages and the distilled models.

    Args:
        metrics: Those of the round; ``votes/clients`` is how many clients voted.
        models: The weights of all architectures.
    """
    clients = metrics.get("votes/clients", 0)
    candidates = sum(key.startswith("votes/") for key in metrics) - 1
    return clients * candidates * 8, clients * 2 * state_bytes(models)
