"""The base of methods whose clients send one private release, once, and nothing else."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.algorithms.steps import Released
from fedaux_pl.functional import standardized_labels
from fedaux_pl.scoring import Calibration, FeatureMap, Privacy, Scorer, Scoring, Standardized


class OneRelease(Algorithm, ABC):
    """A method whose clients send one private release, and the number of their records.

    The server makes a teacher of the releases and of public data, starts its student there, and
    distills the student in every round. Rounds cost no privacy and no communication: the clients
    are not asked again.

    Args:
        scorer: What clients release.
        feature_map: How features become rows.
        privacy: The privacy of the release.
        sharpness: The teacher's labels are softmax(sharpness z) of its logits z, standardized class
            by class over the distillation data.
        calibration: How the server makes certainty scores of a release, if it does.
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
        sharpness: float,
        calibration: Calibration = Standardized(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(pretrained=True)
        standardized_labels(torch.zeros(1, 1), torch.zeros(1, 1), sharpness)  # checks it
        self.scoring = Scoring(
            scorer=scorer,
            feature_map=feature_map,
            calibration=calibration,
            norm_bound="unit",
            privacy=privacy,
            shrink=False,
        )
        self.sharpness = sharpness

    def settings(self) -> dict[str, Any]:
        """The method and its options as plain values; its clients train nothing."""
        return super().settings() | {"trains_clients": self.trains_clients}

    def label(self, released: Released) -> Tensor:
        """The teacher's probabilities of the classes, shape (N, C): post-processing."""
        reference = logits = self.teach(replace(released, features=released.reference))
        if released.features is not released.reference:
            logits = self.teach(released)
        return standardized_labels(logits, reference, self.sharpness)

    @abstractmethod
    def teach(self, released: Released) -> Tensor:
        """The teacher's logits of the classes, shape (N, C)."""
