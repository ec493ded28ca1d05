"""Scorers that use labels too: their vector makes a classifier, so that no model has to be sent.

Neighboring data sets differ in one record that is replaced, its label included; the number of
classes is public, too. The server pools the class statistics of several clients.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import (
    LinearClassifier,
    class_priors,
    fit_softmax_head,
    integer_statistics,
    pool_class_means,
    softmax_sensitivity,
    split_statistics,
    statistics_sensitivity,
    sum_residuals,
    sum_statistics,
)
from fedaux_pl.functional.class_statistics import known_counts
from fedaux_pl.functional.newton_step import RESIDUAL_SENSITIVITY
from fedaux_pl.scoring.released_head import ReleasedHead, stack_heads
from fedaux_pl.scoring.scorers import Mean, Scorer, check_converged


class SummableScorer(Scorer):
    """A scorer whose vector is a sum over records, also as integers: for secure sums."""

    uses_labels = True

    @abstractmethod
    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the vector in integers, int64."""

    @abstractmethod
    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """Return D^2 of the integers, and what one step of them is in the vector."""

    @abstractmethod
    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """Return the vector of integers, float64."""


@dataclass(frozen=True)
class ClassStatistics(SummableScorer):
    """Releases the sums of rows and the counts of records class by class, and the second moment.

    ``functional.statistics_sensitivity`` has the vector and the proof of its sensitivity D.

    Attributes:
        second_moment: rho, the weight of the second moment; up to 1/2 it costs the sums nothing,
            and the counts have sqrt(1 / (1 - rho)) of the noise that they have without it.
        releases: 2 for a second release, of ``Residuals`` of the classifier that the first one
            makes, with half of the budget; 1 for none; null to choose by the noise.

    Examples:
        >>> rows, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), torch.eye(3)[:2]
        >>> vector = ClassStatistics().vector(rows, labels)
        >>> len(vector), ClassStatistics().sensitivity(num_positives=100, num_negatives=0)
        (12, 2.0)
    """

    what = "the sums of its feature rows and its records by class, and the second moment of rows"

    second_moment: float = 0.15
    releases: int | None = None

    def __post_init__(self) -> None:
        statistics_sensitivity(self.second_moment)  # raises if it is invalid
        check_setting("releases", self.releases, self.releases in (None, 1, 2), "be 1, 2 or null")

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the vector, shape (C (k + 1) + k (k + 1) / 2,)."""
        return sum_statistics(rows, _given(labels), self.second_moment)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """D, for any number of records."""
        return statistics_sensitivity(self.second_moment)[1]

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times the largest norm of the vector of a record."""
        constant, _ = statistics_sensitivity(self.second_moment)
        return num_positives * math.sqrt(1 + constant**2 + self.second_moment)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1) + k (k + 1) / 2."""
        return num_classes * (row_length + 1) + row_length * (row_length + 1) // 2

    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the vector in integers, int64, by ``functional.sum_integers``."""
        return integer_statistics.sum_integers(rows, labels, self.second_moment)

    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """Return D^2 of the integers, and what one step of them is in the class sums."""
        squared = integer_statistics.integer_weights(self.second_moment).squared_sensitivity
        return squared, integer_statistics.statistics_unit(row_length, self.second_moment)

    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """Return the vector of integers, float64."""
        return integer_statistics.decode_statistics(integers, num_classes, self.second_moment)


@dataclass(frozen=True)
class ClassSums(Scorer):
    """Releases the sums of rows and the counts of records class by class, hence the class means.

    A record with the row r and the label y adds phi = e_y (x) [r, 1].

    Sensitivity: 2. Proof: if the label stays, |phi - phi'| = |r - r'| <= 2. If it changes, the two
    blocks are orthogonal, and |phi - phi'|^2 = |r|^2 + 1 + |r'|^2 + 1 <= 4.

    Examples:
        >>> ClassSums().vector(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.eye(2)[[0, 0]])
        tensor([1.6000, 0.8000, 2.0000, 0.0000, 0.0000, 0.0000])
    """

    uses_labels = True
    what = "the sums of its feature rows and its records by class"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the vector, shape (C (k + 1),)."""
        extended = F.pad(rows, (0, 1), value=1.0)
        return (_given(labels).to(rows).T @ extended).flatten()

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2, for any number of records."""
        return 2.0

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times the largest norm of the vector of a record."""
        return num_positives * math.sqrt(2)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1)."""
        return num_classes * (row_length + 1)


@dataclass(frozen=True)
class ClassCounts(Scorer):
    """Releases the number of records of each class, where ``ClassStatistics`` are a secure sum.

    Sensitivity: sqrt(2). Proof: a record of another class moves two counts by 1.

    Examples:
        >>> ClassCounts().vector(torch.zeros(2, 4), torch.eye(3)[:2])
        tensor([1., 1., 0.])
    """

    uses_labels = True
    what = "the number of its records in each class"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the counts, shape (C,)."""
        return _given(labels).to(rows).sum(dim=0)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """sqrt(2)."""
        return math.sqrt(2)

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i|, if all records have one class."""
        return float(num_positives)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C."""
        return num_classes


@dataclass(frozen=True, eq=False)
class Residuals(SummableScorer):
    """Releases the gradient of a classifier that is public, as ``functional.sum_residuals`` has it.

    The classifier, shapes (C, k) and (C,), may depend on what was released before (see ``spent``).
    """

    what = "the gradient of a classifier on its feature rows"

    weight: Tensor | None = None  # None in a plan, until the server has made it
    bias: Tensor | None = None

    def sent_shapes(self, row_length: int, num_classes: int) -> dict[str, tuple[int, ...]]:
        """Those of the classifier."""
        return {"weight": (num_classes, row_length), "bias": (num_classes,)}

    @property
    def classifier(self) -> LinearClassifier:
        """The classifier."""
        if self.weight is None or self.bias is None:
            raise ValueError("the server has not sent the classifier yet")
        return LinearClassifier(self.weight, self.bias)

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the gradient, shape (C (k + 1),)."""
        return sum_residuals(rows, _given(labels), self.classifier).flatten()

    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """That of ``functional.sum_integer_residuals``."""
        return integer_statistics.sum_integer_residuals(rows, labels, self.classifier)

    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """That of ``functional.sum_integer_residuals``; all numbers have one unit."""
        unit = integer_statistics.residuals_unit(row_length, num_classes)
        return integer_statistics.INTEGER_RESIDUAL_SENSITIVITY, unit

    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """The gradient, shape (C (k + 1),)."""
        return integer_statistics.decode_residuals(integers, num_classes).flatten()

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """That of ``sum_residuals``."""
        return RESIDUAL_SENSITIVITY

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times half of the sensitivity, which is the largest norm of a record's part."""
        return num_positives * RESIDUAL_SENSITIVITY / 2

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1)."""
        return num_classes * (row_length + 1)


@dataclass(frozen=True)
class ScoresAndHead(Scorer):
    """Releases certainty scores and a classification head together (FedAUXfdp).

    The vector is [r w, W]: w of any scorer with sensitivity D_w, and W of ``fit_softmax_head`` on
    [row, 1] / sqrt(2), with D_W = 2 sqrt(2) / (lambda n) + 2 tolerance / lambda, which
    ``softmax_sensitivity`` proves; r = D_W / D_w sqrt(share / (1 - share)).

    Sensitivity: D_W / sqrt(1 - share). Proof: a replaced record moves the vector by at most
    sqrt(r^2 D_w^2 + D_W^2) = D_W sqrt(share / (1 - share) + 1). As two releases, w would have mu_w
    = r D_w / sigma and W would have mu_W = D_W / sigma, so mu_w^2 is ``share`` of mu^2 = mu_w^2 +
    mu_W^2: one Gaussian release of both is their exact composition.

    Attributes:
        scorer: What certainty scores are made of.
        regularization: lambda > 0 of the head.
        share: The share of the scores in mu^2, between 0 and 1, both excluded.
        tolerance: The largest gradient norm of a head that is released.

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
        """Whether the scorer uses the rows of D^-."""
        return self.scorer.uses_negatives

    @property
    def flaw(self) -> str:
        """The flaw of the scorer."""
        return self.scorer.flaw

    @property
    def shares(self) -> Mapping[str, float]:  # type: ignore[override]
        """The share of the scores, and that of the head."""
        return {"the scores": self.share, "the head": 1 - self.share}

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute [r w, W], shape (k + C (k + 1),), unless a solver misses its tolerance."""
        # [row, 1] / sqrt(2) has a norm of at most 1 if the row has
        extended = F.pad(rows, (0, 1), value=1.0) / math.sqrt(2)
        head, gradient_norm = fit_softmax_head(
            extended, _given(labels), self.regularization, tolerance=self.tolerance
        )
        check_converged(gradient_norm, self.tolerance)
        weight = self.scorer.vector(rows, negatives=negatives).to(head)
        num_negatives = 0 if negatives is None else len(negatives)
        return torch.cat([self.scale(len(rows), num_negatives) * weight, head.flatten()])

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """D_W / sqrt(1 - share)."""
        return self._head_sensitivity(num_positives) / math.sqrt(1 - self.share)

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """That of both parts; lambda W is a mean of gradients of norm at most sqrt(2)."""
        scores = self.scorer.largest_norm(num_positives, num_negatives)
        head = (math.sqrt(2) + self.tolerance) / self.regularization
        return math.hypot(self.scale(num_positives, num_negatives) * scores, head)

    def split(
        self, vector: Tensor, num_classes: int, num_positives: int, num_negatives: int
    ) -> tuple[Tensor, Tensor]:
        """w, shape (k,), and W, shape (C, k + 1), of a vector."""
        length = self.row_length(vector, num_classes)
        weight = vector[:length] / self.scale(num_positives, num_negatives)
        return weight, vector[length:].view(num_classes, -1)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """k + C (k + 1)."""
        return row_length + num_classes * (row_length + 1)

    def _head_sensitivity(self, num_positives: int) -> float:
        return softmax_sensitivity(self.regularization, num_positives, self.tolerance)

    def scale(self, num_positives: int, num_negatives: int) -> float:
        """r, the factor of w in the vector."""
        num_negatives = num_negatives if self.uses_negatives else 0
        sensitivity = self.scorer.sensitivity(num_positives, num_negatives)
        ratio = self._head_sensitivity(num_positives) / sensitivity
        return ratio * math.sqrt(self.share / (1 - self.share))


def _given(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ValueError("the scorer needs the labels of the client")
    return labels


@dataclass(frozen=True)
class PooledStatistics:
    """The statistics of the clients of one architecture."""

    means: Tensor  # the mean row of each class with noise, shape (C, k)
    variances: Tensor  # of the noise in a number of each mean, shape (C,)
    priors: Tensor  # the shares of the classes, shape (C,)
    moment: Tensor  # the sum of r r^T with noise, shape (k, k)
    noise: float  # the standard deviation of the noise in its diagonal


def pool_statistics(
    heads: Sequence[ReleasedHead], num_classes: int, rho: float
) -> PooledStatistics:
    """Pool the clients' ``ClassStatistics`` with weight rho of the second moment, or their sum."""
    vectors, sigmas = stack_heads(heads)
    constant, _ = statistics_sensitivity(rho)
    parts = [split_statistics(vector, num_classes, rho) for vector in vectors]
    sums, counts, moments = (torch.stack(group) for group in zip(*parts, strict=True))
    total = float(sigmas.norm())
    return PooledStatistics(
        *pool_class_means(sums, counts, sigmas, sigmas / constant),
        priors=class_priors(counts.sum(dim=0), total / constant),
        moment=moments.sum(dim=0),
        noise=total / math.sqrt(rho),
    )


def counts_of_clients(heads: Sequence[ReleasedHead], num_classes: int, rho: float | None) -> Tensor:
    """Return the known class counts of each client, shape (n, C).

    The heads are ``ClassStatistics`` with this weight rho or, if it is None, ``ClassCounts``.
    """
    if rho is None:
        return known_counts(*stack_heads(heads))
    # before they are stacked: statistics of several architectures differ in length
    parts = [split_statistics(head.weight, num_classes, rho) for head in heads]
    counts = [replace(head, weight=part[1]) for head, part in zip(heads, parts, strict=True)]
    known, sigmas = stack_heads(counts)
    return known_counts(known, sigmas / statistics_sensitivity(rho)[0])
