"""What the clients of a method release before the first round, and what the server makes of it.

A ``ClientRelease`` plans the ``Step``s of a method. In a step every client sends a
``ReleasedHead``: a vector w_i with noise. ``Collected`` holds those of one step, and ``Released``
those of all steps with the server's features. From it the server computes the ``Evidence``, s_i(x)
and p(c | x), by which teachers are weighted.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedaux_pl.functional import LinearClassifier
from fedaux_pl.scoring import (
    Collected,
    Plan,
    PublicNumbers,
    ReleasedHead,
    Scoring,
    Step,
    first_step,
    plan,
)


@dataclass(frozen=True)
class Released:
    """What the server has received from the clients so far, and the data that it scores.

    The server scores D_distill, whose samples the teachers label. It scores the evaluated data only
    to measure the teachers. ``parts`` holds h_0(x), shape (N, d), by part and architecture; the
    parts are D_distill (``distill``) and the evaluated data (``evaluation``).
    """

    plan: Plan  # the steps in which the clients release
    collected: Mapping[str, Collected]  # the releases so far, by step
    architectures: Sequence[str]  # the architecture whose features each client uses
    sizes: Sequence[int]  # |D_i| of each client, which is public
    num_negatives: int  # |D^-|
    num_classes: int  # C
    parts: Mapping[str, Mapping[str, Tensor]]

    @property
    def first(self) -> Step:
        """The first step of the plan."""
        return first_step(self.plan)

    @property
    def heads(self) -> Sequence[ReleasedHead]:
        """The vectors of the first step, ordered by client."""
        return self.collected[self.first.name].heads

    @property
    def reference(self) -> Mapping[str, Tensor]:
        """h_0(x) of D_distill. A teacher must not depend on the evaluated data."""
        return self.parts["distill"]

    def group(self, architecture: str) -> list[ReleasedHead]:
        """Return the vectors of the clients of one architecture."""
        return [head for head in self.heads if self.architectures[head.client] == architecture]


@dataclass(frozen=True)
class Evidence:
    """What the server has computed from the releases, by part of the data.

    FedAUX fills the certainty, with class statistics the class probabilities as well. FedClassMeans
    and FedCOF fill the class probabilities and the classifiers, FedAUXfdp only the probabilities.

    Examples:
        >>> Evidence().is_empty
        True
    """

    certainty: Mapping[str, Tensor] = field(default_factory=dict)  # s_i(x) of all clients, (n, N)
    class_probabilities: Mapping[str, Tensor] = field(default_factory=dict)  # p(c | x), (N, C)
    # linear classifiers of rows (features after the feature map), by architecture, at which
    # students start; those of other architectures start from a regression on the probabilities
    classifiers: Mapping[str, LinearClassifier] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been computed yet."""
        return not self.certainty and not self.class_probabilities


@dataclass(frozen=True)
class ClientRelease(ABC):
    """What every client of a method releases, and how the server computes evidence from it.

    Args:
        scoring: What a client computes from its data, and the privacy of all that it releases.
    """

    scoring: Scoring

    def plan(self, numbers: PublicNumbers | None) -> Plan:
        """Return the steps in which clients release.

        ``numbers`` are None over real sites, which report their sizes only with the release.
        """
        return plan(self.scoring, numbers)

    def send(self, released: Released, architecture: str) -> Mapping[str, Tensor]:
        """Return what the server sends to the clients of an architecture with a later step.

        It may depend on earlier releases, as the classifier does whose gradient clients release.
        """
        return {}

    @abstractmethod
    def evidence(self, released: Released) -> Evidence:
        """Compute the certainty scores, the class probabilities, or both."""
