"""The mean of a client's rows: the scorer of FedAUX by default."""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.scoring.scorers.scorer import Scorer


@dataclass(frozen=True)
class Mean(Scorer):
    """Releases the mean of the client's rows; D^- is not used.

    Sensitivity: 2 / n for n = |D_i|. Proof: replacing the row r by r' moves the mean by (r' - r) /
    n, whose norm is at most (|r'| + |r|) / n <= 2 / n, because every row has a norm of at most 1.
    r' = -r with |r| = 1 attains the bound.

    Examples:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> Mean().vector(rows)
        tensor([0.5000, 0.5000])
        >>> Mean().sensitivity(num_positives=100, num_negatives=0)
        0.02
    """

    what = "the mean of its feature rows"

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the mean of the rows, shape (k,)."""
        return rows.mean(dim=0)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / |D_i|."""
        return 2 / num_positives

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """1, the largest norm of a row."""
        return 1.0
