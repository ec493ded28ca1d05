"""The mean of a client's rows.

Sensitivity. Replacing one of the n = |D_i| rows r by r' moves the mean by (r' - r) / n, whose norm
is at most (|r'| + |r|) / n <= 2 / n, since rows are clipped to a norm of B and divided by B (in the
units of features: 2 B / n). The bound is attained by r' = -r.

There is no optimisation whose convergence the guarantee would depend on, and the noise falls with
|D_i|, whatever the regularisation of a regression would have to be. In features that are centred
and whitened by public statistics <w_i, row(x)> is the direction of the client in which x lies.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional import bounded_rows
from fedaux_pl.scoring.base import Scorer


@dataclass(frozen=True)
class Mean(Scorer):
    """Releases the mean of the client's rows; D^- is not needed."""

    uses_negatives = False
    what = "the mean of its feature rows"

    def vector(self, positives: Tensor, negatives: Tensor, bound: float) -> Tensor:
        """The mean of rows of norm at most 1."""
        if positives.ndim != 2 or len(positives) == 0:
            raise ValueError(
                "positives must be (samples, d) with at least one sample, but are "
                f"{tuple(positives.shape)}"
            )
        return bounded_rows(positives, bound).mean(dim=0)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / |D_i|."""
        if num_positives < 1:
            raise ValueError(f"the number of samples must be at least 1, but is {num_positives}")
        return 2 / num_positives
