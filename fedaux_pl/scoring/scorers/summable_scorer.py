"""The base class of scorers whose vectors can be added up by a secure sum."""

from abc import abstractmethod

from torch import Tensor

from fedaux_pl.scoring.scorers.scorer import Scorer


class SummableScorer(Scorer):
    """A scorer with labels whose vector is a sum over records, and can be computed in integers.

    Secure sums add integers for two reasons: a mask hides an integer perfectly, and no rounding
    error is part of the sensitivity of integers.
    """

    uses_labels = True

    @abstractmethod
    def integer_vector(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Compute the vector in integers, int64."""

    @abstractmethod
    def integer_sensitivity(self, row_length: int, num_classes: int) -> tuple[int, float]:
        """Return D^2 of the integer vector, and the unit: the value of the integer 1."""

    @abstractmethod
    def decode(self, integers: Tensor, num_classes: int) -> Tensor:
        """Turn an integer vector, or a sum of such vectors, into a float64 vector."""
