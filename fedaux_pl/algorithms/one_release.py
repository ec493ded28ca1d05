"""The base of methods whose clients send private releases once, and nothing else."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Released
from fedaux_pl.scoring import Calibration, FeatureMap, Privacy, Scorer, Scoring, Standardized


class OneRelease(Algorithm, ABC):
    """A method whose clients send what they release, and the number of their records.

    The server makes a teacher of the releases and of public data, starts its student there, and
    distills the student in every round. Rounds cost no privacy and no communication: the clients
    are not asked again.

    Args:
        scorer: What a client releases.
        feature_map: How features are mapped first, by statistics of the public auxiliary data.
        privacy: The privacy of all that leaves a client.
        calibration: How the server turns a released vector into scores, at no cost in privacy.
    """

    distills = True
    pretrained = True
    trains_clients = False
    scoring: Scoring

    def __init__(
        self,
        scorer: Scorer,
        feature_map: FeatureMap,
        privacy: Privacy,
        calibration: Calibration = Standardized(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(pretrained=True)
        self.scoring = Scoring(scorer, feature_map, calibration, "unit", privacy, shrink=False)

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values; its clients train nothing."""
        return super().settings() | {"trains_clients": self.trains_clients}

    @abstractmethod
    def label(self, released: Released) -> dict[str, Tensor]:
        """Return the teacher's probabilities of the classes on each part of the data."""
