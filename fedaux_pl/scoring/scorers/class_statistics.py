"""Class sums, class counts and the second moment of a client's rows."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import integer_statistics, statistics_sensitivity, sum_statistics
from fedaux_pl.scoring.scorers.checks import require_labels
from fedaux_pl.scoring.scorers.summable_scorer import SummableScorer


@dataclass(frozen=True)
class ClassStatistics(SummableScorer):
    """Releases the sum of the rows and the number of records of each class, and the second moment.

    The second moment is the sum of r r^T over all rows r. ``functional.statistics_sensitivity``
    defines the vector and proves its sensitivity D.

    Attributes:
        second_moment: rho, the weight of the second moment. Up to rho = 1/2 the sums get no more
            noise than without the second moment, and the noise of the counts grows by the factor
            1 / sqrt(1 - rho).
        releases: 1 for this release only. 2 for a second release with half of the budget: the
            gradient (``Residuals``) of the classifier that the server makes from the first release.
            null chooses the number by the noise.

    Examples:
        >>> import torch
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
        return sum_statistics(rows, require_labels(labels), self.second_moment)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1) + k (k + 1) / 2."""
        return num_classes * (row_length + 1) + row_length * (row_length + 1) // 2

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """D, for any number of records."""
        return statistics_sensitivity(self.second_moment)[1]

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times the largest norm of the vector of one record."""
        constant, _ = statistics_sensitivity(self.second_moment)
        return num_positives * math.sqrt(1 + constant**2 + self.second_moment)

    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the vector in integers, int64, by ``functional.sum_integers``."""
        return integer_statistics.sum_integers(rows, labels, self.second_moment)

    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """Return D^2 of the integers, and the value of the integer 1 in the class sums."""
        squared = integer_statistics.integer_weights(self.second_moment).squared_sensitivity
        return squared, integer_statistics.statistics_unit(row_length, self.second_moment)

    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """Turn integers into the float64 vector, by ``functional.decode_statistics``."""
        return integer_statistics.decode_statistics(integers, num_classes, self.second_moment)
