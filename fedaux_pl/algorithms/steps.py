"""What a method sees of a client's training, of the server's averages and of releases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import ReleasedHead, Scoring

ServerState = Mapping[str, State]
"""What the server keeps of one architecture: by the method's own names, such as ``momentum``."""


@dataclass(frozen=True)
class LocalResult:
    """A client's training in a round.

    Attributes:
        start: theta^P, the trained parameters that the server has sent.
        end: theta_i, the same parameters after the training.
        steps: K, the number of optimizer steps.
        lr: The learning rate of the clients.
        received: What the server has sent besides its model.
        kept: What the client has kept since its last round; empty in its first.
    """

    start: State
    end: State
    steps: int
    lr: float
    received: State = field(default_factory=dict)
    kept: State = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregate:
    """The averages of a round, of the clients of one architecture.

    ``theta`` and ``average`` hold the trained parameters only: buffers take the average, and an h
    that is not trained stays as it is.

    Attributes:
        theta: theta^P, the server's model before the round.
        average: The average of the clients' models, by |D_i|.
        payload: The average of what clients have sent besides their weights, by |D_i|.
        fraction: sum_i |D_i| over the round's clients / sum_i |D_i| over all clients.
        state: What the last ``server_step`` has returned; empty before the first.

    Examples:
        >>> import torch
        >>> from fedaux_pl.algorithms import Aggregate
        >>> weights = {"weight": torch.ones(2)}
        >>> Aggregate(theta=weights, average=weights).kept("momentum")
        {'weight': tensor([0., 0.])}
    """

    theta: State
    average: State
    payload: State = field(default_factory=dict)
    fraction: float = 1.0
    state: ServerState = field(default_factory=dict)

    def kept(self, name: str, initial: float = 0.0) -> State:
        """Tensors of the state with the names of the parameters, at first all ``initial``."""
        if name in self.state:
            return self.state[name]
        return {key: torch.full_like(tensor, initial) for key, tensor in self.theta.items()}


@dataclass(frozen=True)
class Released:
    """What the server has when all clients have sent their releases, and public data to label.

    Attributes:
        scoring: What clients release first, as ``Algorithm.plan`` has planned it.
        heads: The released vectors, ordered by client.
        architectures: The architecture of each client, in whose features its vector is.
        sizes: |D_i| of each client, which is public.
        num_negatives: |D^-|.
        num_classes: C.
        parts: h_0(x), shape (N, d), of D_distill (``distill``) and of the evaluated data
            (``evaluation``), by part and architecture.
        further: Further releases, by their names.
    """

    scoring: Scoring
    heads: Sequence[ReleasedHead]
    architectures: Sequence[str]
    sizes: Sequence[int]
    num_negatives: int
    num_classes: int
    parts: Mapping[str, Mapping[str, Tensor]]
    further: Mapping[str, "FurtherRelease"] = field(default_factory=dict)

    @property
    def reference(self) -> Mapping[str, Tensor]:
        """h_0(x) of D_distill: other data must not influence a teacher."""
        return self.parts["distill"]

    def group(self, architecture: str) -> list[ReleasedHead]:
        """The heads of the clients of an architecture."""
        return [head for head in self.heads if self.architectures[head.client] == architecture]


@dataclass(frozen=True)
class FurtherRelease:
    """A release that clients make after the first one.

    Attributes:
        scoring: What they release.
        clients: The clients that are asked for it.
        heads: The released vectors so far, ordered by client.
    """

    scoring: Scoring
    clients: Sequence[int] = ()
    heads: Sequence[ReleasedHead] = ()
