"""Certainty scores and a classification head in one release: the scorer of FedAUXfdp."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import fit_softmax_head, softmax_sensitivity
from fedaux_pl.scoring.scorers.checks import check_converged, require_labels
from fedaux_pl.scoring.scorers.mean import Mean
from fedaux_pl.scoring.scorers.scorer import Scorer


@dataclass(frozen=True)
class ScoresAndHead(Scorer):
    """Releases certainty scores and a classification head together.

    The vector is [r w, W]. w is the vector of another scorer, whose sensitivity is D_w. W is the
    head that ``fit_softmax_head`` fits to [row, 1] / sqrt(2); ``softmax_sensitivity`` proves its
    sensitivity D_W = 2 sqrt(2) / (lambda n) + 2 tolerance / lambda. The factor
    r = D_W / D_w sqrt(share / (1 - share)) decides how the two parts split the budget.

    Sensitivity: D_W / sqrt(1 - share). Proof: a replaced record moves the vector by at most
    sqrt(r^2 D_w^2 + D_W^2) = D_W sqrt(share / (1 - share) + 1).

    Composition: released separately, w would have mu_w = r D_w / sigma and W would have mu_W =
    D_W / sigma. mu_w^2 is ``share`` of mu^2 = mu_w^2 + mu_W^2, so the release of both parts as one
    vector is exactly the composition of the two.

    Attributes:
        scorer: The scorer that computes w; it must not use labels.
        regularization: lambda > 0 of the head.
        share: The share of w in mu^2, between 0 and 1, both excluded.
        tolerance: The largest gradient norm at which a head is released.

    Examples:
        >>> round(ScoresAndHead(regularization=0.1, share=0.5).sensitivity(1000, 0), 5)
        0.04
    """

    uses_labels = True
    what = "its certainty scores and its classification head"

    scorer: Scorer = Mean()  # noqa: RUF009 - frozen
    regularization: float = 0.01
    share: float = 0.5
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        check_setting("share", self.share, 0 < self.share < 1, "lie strictly between 0 and 1")
        is_valid = isinstance(self.scorer, Scorer) and not self.scorer.uses_labels
        check_setting("scorer", self.scorer, is_valid, "be a Scorer without labels such as Mean()")
        self.sensitivity(1, 0)  # raises if another option is invalid

    @property
    def uses_negatives(self) -> bool:  # type: ignore[override]
        """Whether the scorer of w uses the rows of D^-."""
        return self.scorer.uses_negatives

    @property
    def flaw(self) -> str:
        """The flaw of the scorer of w."""
        return self.scorer.flaw

    @property
    def shares(self) -> Mapping[str, float]:  # type: ignore[override]
        """The share of the scores and the share of the head."""
        return {"the scores": self.share, "the head": 1 - self.share}

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute [r w, W], shape (k + C (k + 1),).

        A fit that does not reach its tolerance raises a PrivacyError.
        """
        # if the norm of a row is at most 1, so is the norm of [row, 1] / sqrt(2)
        extended = F.pad(rows, (0, 1), value=1.0) / math.sqrt(2)
        head, gradient_norm = fit_softmax_head(
            extended, require_labels(labels), self.regularization, tolerance=self.tolerance
        )
        check_converged(gradient_norm, self.tolerance)
        weight = self.scorer.vector(rows, negatives=negatives).to(head)
        num_negatives = 0 if negatives is None else len(negatives)
        return torch.cat([self.scale(len(rows), num_negatives) * weight, head.flatten()])

    def split(
        self, vector: Tensor, num_classes: int, num_positives: int, num_negatives: int
    ) -> tuple[Tensor, Tensor]:
        """Split a vector into w, shape (k,), and W, shape (C, k + 1)."""
        length = self.row_length(vector, num_classes)
        weight = vector[:length] / self.scale(num_positives, num_negatives)
        return weight, vector[length:].view(num_classes, -1)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """k + C (k + 1)."""
        return row_length + num_classes * (row_length + 1)

    def scale(self, num_positives: int, num_negatives: int) -> float:
        """Return r, the factor of w in the vector."""
        num_negatives = num_negatives if self.uses_negatives else 0
        scores_sensitivity = self.scorer.sensitivity(num_positives, num_negatives)
        ratio = self.head_sensitivity(num_positives) / scores_sensitivity
        return ratio * math.sqrt(self.share / (1 - self.share))

    def head_sensitivity(self, num_positives: int) -> float:
        """Return D_W."""
        return softmax_sensitivity(self.regularization, num_positives, self.tolerance)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """D_W / sqrt(1 - share)."""
        return self.head_sensitivity(num_positives) / math.sqrt(1 - self.share)

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """The norm of the vector [r |w|, |W|] of the largest norms of both parts.

        Where the gradient of the head's objective is 0, lambda W is a mean of gradients of norm at
        most sqrt(2).
        """
        scores = self.scorer.largest_norm(num_positives, num_negatives)
        head = (math.sqrt(2) + self.tolerance) / self.regularization
        return math.hypot(self.scale(num_positives, num_negatives) * scores, head)
