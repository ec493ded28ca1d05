"""The class counts of a client, which a secure sum of class statistics hides."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.scoring.scorers.checks import require_labels
from fedaux_pl.scoring.scorers.scorer import Scorer


@dataclass(frozen=True)
class ClassCounts(Scorer):
    """Releases the number of records of each class.

    FedAUX needs the counts of each client. If the server receives only the sum of the clients'
    ``ClassStatistics``, clients release their counts separately.

    Sensitivity: sqrt(2). Proof: if a record is replaced by a record of another class, two counts
    change by 1.

    Examples:
        >>> import torch
        >>> ClassCounts().vector(torch.zeros(2, 4), torch.eye(3)[:2])
        tensor([1., 1., 0.])
    """

    uses_labels = True
    what = "the number of its records in each class"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the counts, shape (C,)."""
        return require_labels(labels).to(rows).sum(dim=0)

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """C."""
        return num_classes

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """sqrt(2)."""
        return math.sqrt(2)

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """|D_i|, which is attained if all records have the same class."""
        return float(num_positives)
