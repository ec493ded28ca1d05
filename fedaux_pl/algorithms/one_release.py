"""The base of methods whose clients send private releases once, and nothing else."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.algorithms.client_release import ClientRelease
from fedaux_pl.algorithms.teachers import Teachers


class OneRelease(Algorithm, ABC):
    """A method whose clients send what they release, the number of their records, and no model.

    The server makes a teacher p(c | x) from the releases and public data, starts its students from
    it, and distills them in every round. Rounds cost no privacy and no communication, because the
    clients are not asked again.
    """

    distills = True
    trains_clients = False
    pretrained = True

    @property
    @abstractmethod
    def release(self) -> ClientRelease:
        """What clients release. Its evidence has ``class_probabilities``, which teach."""

    def settings(self) -> dict[str, Any]:
        """Return the method and its options as plain values; its clients train nothing."""
        return super().settings() | {"trains_clients": self.trains_clients}

    def soft_labels(self, teachers: Teachers) -> Tensor:
        """p(c | x) of the classifier that was made of the releases."""
        assert teachers.class_probabilities is not None  # noqa: S101 - the evidence has them
        return teachers.class_probabilities
