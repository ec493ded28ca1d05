"""The gradient of a public classifier on a client's rows: the second release of FedClassMeans."""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional import LinearClassifier, integer_statistics, sum_residuals
from fedaux_pl.functional.newton_step import RESIDUAL_SENSITIVITY
from fedaux_pl.scoring.scorers.checks import require_labels
from fedaux_pl.scoring.scorers.summable_scorer import SummableScorer


@dataclass(frozen=True, eq=False)
class Residuals(SummableScorer):
    """Releases the gradient of a linear classifier, in which the part of each record is clipped.

    The server makes the classifier from earlier releases and sends it to the clients. Releases that
    are chosen by the results of earlier ones compose as others do, see ``spent``.

    Sensitivity: ``functional.newton_step.RESIDUAL_SENSITIVITY``, which is proven there.

    Attributes:
        weight: The classifier's weight, shape (C, k); None until the server has made it.
        bias: The classifier's bias, shape (C,); None until the server has made it.
    """

    what = "the gradient of a classifier on its feature rows"

    weight: Tensor | None = None
    bias: Tensor | None = None

    def sent_shapes(self, row_length: int, num_classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the classifier's weight and bias."""
        return {"weight": (num_classes, row_length), "bias": (num_classes,)}

    @property
    def classifier(self) -> LinearClassifier:
        """The classifier that the server has sent."""
        if self.weight is None or self.bias is None:
            raise ValueError("the server has not sent the classifier yet")
        return LinearClassifier(self.weight, self.bias)

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the gradient, shape (C (k + 1),), by ``functional.sum_residuals``."""
        return sum_residuals(rows, require_labels(labels), self.classifier).flatten()

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1)."""
        return num_classes * (row_length + 1)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 * 0.7 * sqrt(1.25), for any number of records."""
        return RESIDUAL_SENSITIVITY

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times the largest norm of the part of one record, half of the sensitivity."""
        return num_positives * RESIDUAL_SENSITIVITY / 2

    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the gradient in integers, by ``functional.sum_integer_residuals``."""
        return integer_statistics.sum_integer_residuals(rows, labels, self.classifier)

    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """Return D^2 of the integers, and the value of the integer 1, equal in all entries."""
        unit = integer_statistics.residuals_unit(row_length, num_classes)
        return integer_statistics.INTEGER_RESIDUAL_SENSITIVITY, unit

    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """Turn integers into the gradient, float64 of shape (C (k + 1),)."""
        return integer_statistics.decode_residuals(integers, num_classes).flatten()
