"""The base of methods whose clients send private releases once, and nothing else."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Released
from fedaux_pl.scoring import Scoring


class OneRelease(Algorithm, ABC):
    """A method whose clients send what they release, and the number of their records.

    The server makes a teacher of the releases and of public data, starts its student there, and
    distills the student in every round. Rounds cost no privacy and no communication: the clients
    are not asked again.

    Args:
        scoring: What a client releases, and the privacy of all that leaves a client.
    """

    distills = True
    pretrained = True
    trains_clients = False
    scoring: Scoring

    def __init__(self, scoring: Scoring) -> None:
        super().__init__(pretrained=True)
        self.scoring = scoring

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values; its clients train nothing."""
        return super().settings() | {"trains_clients": self.trains_clients}

    @abstractmethod
    def label(self, released: Released) -> dict[str, Tensor]:
        """Return the teacher's probabilities of the classes on each part of the data."""
