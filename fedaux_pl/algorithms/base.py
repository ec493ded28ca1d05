"""What all methods share, and the few things in which they differ."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedaux_pl.functional.averaging import State
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Scoring


@dataclass(frozen=True)
class Answer:
    """What is said about a client's update: all but the weights.

    Attributes:
        client: Its id.
        architecture: The name of its model.
        size: |D_i|.
        loss: Its mean training loss, for the log.
    """

    client: int
    architecture: str
    size: int
    loss: float


@dataclass(frozen=True)
class Update:
    """What a client sends back in a round.

    Attributes:
        client: Its id.
        architecture: The name of its model.
        state: theta_i, parameters and buffers.
        size: |D_i|.
        loss: Its mean training loss, for the log.
    """

    client: int
    architecture: str
    state: dict[str, Tensor]
    size: int
    loss: float

    @property
    def about(self) -> Answer:
        """The update without its weights."""
        return Answer(self.client, self.architecture, self.size, self.loss)


@dataclass(frozen=True)
class Ensemble:
    """The models of a round, and what they say about some data.

    Attributes:
        updates: What the selected clients sent: those whom this process trained, or all of them
            where the method ``sees_all``.
        averages: theta^P, the weighted average of each architecture.
        predict: f(x) on the data for an architecture and its weights, shape (N, C).
        scores: s_i(x) on the data for every client of the federation, shape (n, N), or None.
        buffers: For each architecture the names of the entries that are no parameters.
        seed: For methods that sample.
        shape: (N, C), the shape of predictions on the data.
        processes: Those that share the clients; what a method sums over clients, it sums over
            them too.
        hear: Takes down what a client says, for methods that remember.
        absent: The clients that are away and remembered: id, rounds since they were there, logits.
    """

    updates: Sequence[Update]
    averages: Mapping[str, State]
    predict: Callable[[str, State], Tensor]
    scores: Tensor | None
    buffers: Mapping[str, Collection[str]]
    seed: int
    shape: tuple[int, int] = (0, 0)
    processes: Processes = field(default_factory=Processes)
    hear: Callable[[int, Tensor], None] = lambda *_: None
    absent: Callable[[], Iterable[tuple[int, int, Tensor]]] = tuple

    def nothing(self) -> Tensor:
        """The sum of no predictions, which is what a process without clients adds."""
        return torch.zeros(self.shape, device=self.processes.device)


class Algorithm:
    """A method of federated learning: FedAVG, unless a subclass says otherwise.

    In every method the selected clients train from the server's model and the server averages
    their weights within each architecture. A method may change the clients' loss (``mu``), ask for
    certainty scores (``scoring``), and turn the clients' models into soft labels from which the
    averages are distilled further (``soft_labels``).

    Where several processes share the clients, ``soft_labels`` sees those of its own and sums over
    the processes, as FedDF does; a method that needs the weights of all clients at once says so by
    ``sees_all``, and may share the work as FedBE does.

    Args:
        pretrained: Whether models start from features h_0 that were learned on the auxiliary data
            (the paper's +P), or from random weights.
    """

    distills: ClassVar[bool] = False
    sees_all: ClassVar[bool] = False
    secret_noise: bool = False
    remember: bool = False
    discount: float = 1.0

    def __init__(self, pretrained: bool = False) -> None:
        self.pretrained = pretrained

    @property
    def name(self) -> str:
        """The name in tables, as the paper writes it."""
        memory = " with memory" if self.remember else ""
        return type(self).__name__ + ("+P" if self.pretrained else "") + memory

    @property
    def mu(self) -> float:
        """The strength of the proximal term in the clients' loss."""
        return 0.0

    @property
    def scoring(self) -> Scoring | None:
        """How the clients' certainty is scored, or None where it is not."""
        return None

    @property
    def needs_auxiliary(self) -> bool:
        """Whether the method cannot do without auxiliary data."""
        return self.pretrained or self.distills

    def soft_labels(self, ensemble: Ensemble) -> Tensor | None:
        """What the clients together say about the data, (N, C); None if they are not asked."""
        return None

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values: what must not change within a run."""
        plain: dict[str, Any] = {"method": type(self).__name__}
        for name, value in vars(self).items():
            plain |= asdict(value) if isinstance(value, Scoring) else {name.strip("_"): value}
        return plain
