"""The base of methods whose clients send one private release, once, and nothing else."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.algorithms.steps import Released
from fedaux_pl.functional import standardized_labels
from fedaux_pl.scoring import Scoring


class OneRelease(Algorithm, ABC):
    """A method whose clients send one private release, and the number of their records.

    The server makes a teacher of the releases and of public data, starts its student there, and
    distills the student in every round. Rounds cost no privacy and no communication: the clients
    are not asked again.

    Args:
        scoring: What clients release.
        sharpness: The teacher's labels are softmax(sharpness z) of its logits z, standardized class
            by class over the distillation data.
        secret_noise: See ``FedAUX``.
    """

    distills = True
    pretrained = True
    trains_clients = False
    scoring: Scoring

    def __init__(self, scoring: Scoring, sharpness: float, secret_noise: bool) -> None:
        super().__init__(pretrained=True)
        standardized_labels(torch.zeros(1, 1), torch.zeros(1, 1), sharpness)  # checks it
        self.scoring = scoring
        self.sharpness = sharpness
        self.secret_noise = secret_noise

    @property
    def name(self) -> str:
        """The method without the +P, which it always has."""
        return super().name.replace("+P", "")

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
