"""Class sums and class counts of a client's rows: the scorer of FedCOF."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedaux_pl.scoring.scorers.checks import require_labels
from fedaux_pl.scoring.scorers.scorer import Scorer


@dataclass(frozen=True)
class ClassSums(Scorer):
    """Releases the sum of the rows and the number of records of each class.

    The server computes the class means from them. A record with the row r and the label y adds
    phi = e_y (x) [r, 1].

    Sensitivity: 2. Proof: if the label stays, |phi - phi'| = |r - r'| <= 2. If the label changes,
    phi and phi' are orthogonal, and |phi - phi'|^2 = |r|^2 + 1 + |r'|^2 + 1 <= 4.

    Examples:
        >>> import torch
        >>> ClassSums().vector(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.eye(2)[[0, 0]])
        tensor([1.6000, 0.8000, 2.0000, 0.0000, 0.0000, 0.0000])
    """

    uses_labels = True
    what = "the sums of its feature rows and its records by class"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the vector, shape (C (k + 1),)."""
        extended = F.pad(rows, (0, 1), value=1.0)  # [r, 1]
        return (require_labels(labels).to(rows).T @ extended).flatten()

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C (k + 1)."""
        return num_classes * (row_length + 1)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2, for any number of records."""
        return 2.0

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i| times the largest norm of the vector of one record."""
        return num_positives * math.sqrt(2)
