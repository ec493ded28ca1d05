"""FedAUXfdp (Hoech et al. 2022): one private release of scores and a head, no model update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.algorithms.client_release import ClientRelease, Evidence, Released
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.errors import check_setting
from fedaux_pl.functional import SoftLabelSum, shrink_to_mean, standardized_labels
from fedaux_pl.scoring import MeanScoring, Privacy, ScoresAndHead, ScoringRecipe, plain_settings


@dataclass(frozen=True, kw_only=True)
class FedAUXfdp(OneRelease):
    """Distills from classification heads of the clients, weighted by their certainty scores.

    h_0 stays as it is. Every client fits a regularized linear classifier on its features, and
    releases it with its certainty scores, once, with noise that makes both together (epsilon,
    delta)-private if it is secret. That and the number of its records are all that leaves a client.

    Args:
        scoring: What certainty scores are made of, as in ``FedAUX``, without class statistics. The
            head is fitted to the same rows as the scores.
        regularization: lambda of the classifier; a larger one needs less noise and separates less.
        share: The share of the scores in the budget, in mu^2; the head has the rest.
        sharpness: The teacher's labels are softmax(sharpness z) of its logits z, standardized class
            by class over the distillation data; above 0 and at most 20. That of the scores is
            ``scoring.sharpness``.
        privacy: The privacy of all that leaves a client.

    Examples:
        >>> FedAUXfdp(privacy=Privacy(epsilon=0.6, delta=2e-5)).release.scoring.scorer.shares
        {'the scores': 0.5, 'the head': 0.5}
    """

    scoring: ScoringRecipe = MeanScoring(64, whitening=0.5, sharpness=1.0)  # noqa: RUF009
    regularization: float = 0.3
    share: float = 0.5
    sharpness: float = 3.0
    privacy: Privacy = Privacy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        is_recipe = isinstance(self.scoring, ScoringRecipe)
        expected = "be a ScoringRecipe such as MeanScoring()"
        check_setting("scoring", self.scoring, is_recipe, expected)
        is_public = self.scoring.create(self.privacy).norm_bound != "private"
        expected = "have a public norm bound, as MeanScoring()"
        check_setting("scoring", self.scoring, is_public, expected)
        standardized_labels(torch.zeros(1, 1), torch.zeros(1, 1), self.sharpness)  # checks it
        self.release  # noqa: B018 - checks the options of the scorer

    @cached_property
    def release(self) -> "HeadsOfClients":
        """A scoring vector and a classification head of each client, as one vector."""
        scores = self.scoring.create(self.privacy)
        scorer = ScoresAndHead(scores.scorer, self.regularization, self.share)
        return HeadsOfClients(replace(scores, scorer=scorer), self.sharpness)

    def settings(self) -> dict[str, Any]:
        """Return the method and its options as plain values."""
        return super().settings() | {"scorer": plain_settings(self.release.scorer.scorer)}


@dataclass(frozen=True)
class HeadsOfClients(ClientRelease):
    """The heads of all clients, weighted by their certainty, are the teacher.

    Args:
        sharpness: How far the teacher's labels are from uniform.
    """

    sharpness: float = 3.0

    @property
    def scorer(self) -> ScoresAndHead:
        """What computes a client's vector."""
        assert isinstance(self.scoring.scorer, ScoresAndHead)  # noqa: S101 - for mypy
        return self.scoring.scorer

    def evidence(self, released: Released) -> Evidence:
        """Compute softmax(sharpness z) of the teacher's logits z, standardized over D_distill."""
        logits = {part: self._teach(released, rows) for part, rows in released.parts.items()}
        reference = logits["distill"]
        return Evidence(
            class_probabilities={
                part: standardized_labels(values, reference, self.sharpness)
                for part, values in logits.items()
            }
        )

    def _teach(self, released: Released, features: Mapping[str, Tensor]) -> Tensor:
        """sum_i s_i f_i / sum_i s_i with the heads f_i = W_i [row, 1] / sqrt(2), as in A_s."""
        total = SoftLabelSum()
        for name in features:
            heads = released.group(name)
            if not heads:  # of sites that have never been there
                continue
            public_map = heads[0].public_map  # the clients of an architecture share it
            rows = public_map.rows(features[name])
            reference = public_map.rows(released.reference[name])
            weights = []
            matrices = []
            noise = []
            for head in heads:
                size = released.sizes[head.client], released.num_negatives
                weight, matrix = self.scorer.split(head.weight, released.num_classes, *size)
                weights.append(weight)
                matrices.append(matrix)
                noise.append(head.release.sigma / self.scorer.scale(*size))
            vectors = torch.stack(weights)
            shrunk = shrink_to_mean(vectors, vectors.new_tensor(noise))
            for weight, matrix in zip(shrunk.to(rows), matrices, strict=True):
                scores = self.scoring.calibration.scores(rows @ weight, reference @ weight)
                head_weight = matrix.to(rows) / math.sqrt(2)
                total.add(rows @ head_weight[:, :-1].T + head_weight[:, -1], scores)
        return total.logits()
