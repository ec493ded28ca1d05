"""Scorers: how a client summarizes its data in one vector.

A client maps its records to rows of norm at most 1 by a public map, record by record, computes one
vector from the rows, and adds Gaussian noise for the vector's sensitivity. Neighboring data sets
differ in one record that is replaced, hence in at most one row; |D_i| is public. What the server
computes from the noisy vector and public data is post-processing and costs no privacy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedaux_pl.errors import PrivacyError
from fedaux_pl.functional import fit_scoring_head, scoring_sensitivity


class Scorer(ABC):
    """How a client summarizes its rows in one vector w_i; <w_i, row(x)> then scores x."""

    uses_negatives: ClassVar[bool] = False
    """Whether ``vector`` uses the rows of D^-, which are then sent to the clients."""
    uses_labels: ClassVar[bool] = False
    """Whether ``vector`` uses the labels of D_i."""
    what: ClassVar[str]
    """What is released, for the log: "each client released ..."."""
    shares: ClassVar[Mapping[str, float]] = {}
    """The share of mu^2 of each part of the vector; empty if it has one part only."""

    @property
    def flaw(self) -> str:
        """Why the sensitivity does not hold with these options; empty if it holds."""
        return ""

    def sent_shapes(self, row_length: int, num_classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of public tensors that the server sends, by the names of fields."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the public tensors that the server sends, by name."""
        return {name: getattr(self, name) for name in self.sent_shapes(0, 0)}

    @abstractmethod
    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute what is released, before noise, as a vector.

        Args:
            rows: The rows of D_i, float64 of shape (|D_i|, k), of norm at most 1.
            labels: Their one-hot labels, shape (|D_i|, C); given if ``uses_labels``.
            negatives: The rows of D^-, (|D^-|, k); empty or None unless ``uses_negatives``.
        """

    def row_length(self, vector: Tensor, num_classes: int) -> int:
        """Return k, the length of a row, from a vector whose length is linear in k."""
        constant = self.vector_length(0, num_classes)
        slope = self.vector_length(1, num_classes) - constant
        return (len(vector) - constant) // slope

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """Return the length of a vector that is released, for rows of length k."""
        return row_length

    @abstractmethod
    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """Bound how far replacing one row of D_i can move the vector, in the l2-norm."""

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """Bound the l2-norm of the vector; a server of sites leaves out releases beyond it."""
        return math.inf


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
        """Compute the mean of the rows."""
        return rows.mean(dim=0)

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / |D_i|."""
        return 2 / num_positives

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """1, as that of the rows."""
        return 1.0


@dataclass(frozen=True)
class Logistic(Scorer):
    """Releases the weight of a logistic regression of D_i against D^- (FedAUX, 3.4 and 3.5).

    Sensitivity: 2 / (lambda N) + 2 tolerance / lambda for N = |D_i| + |D^-|, which
    ``functional.scoring_sensitivity`` proves; ``vector`` refuses a weight at which the gradient of
    J, the mean of N losses plus (lambda/2) |w|^2, has a norm above ``tolerance``.

    With ``normalized=False`` J has the sum of the losses in place of their mean, as in the authors'
    code. The proof then bounds the sensitivity by 2 / lambda + 2 tolerance N / lambda only, N times
    the sensitivity that is claimed: such releases are marked as flawed.

    Attributes:
        regularization: lambda > 0.
        normalized: Whether J has the mean of the losses. False: NOT private.
        tolerance: The largest gradient norm of a weight that is released.

    Examples:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> Logistic(regularization=0.01).vector(rows[:1], negatives=rows[1:]).round(decimals=3)
        tensor([ 2.8180, -2.8180], dtype=torch.float64)
        >>> round(Logistic(regularization=0.01).sensitivity(400, 600), 6)
        0.2
    """

    uses_negatives = True
    what = "its scoring head"

    regularization: float = 0.1
    normalized: bool = True
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        self.sensitivity(1, 0)  # raises if an option is invalid

    @property
    def flaw(self) -> str:
        """The sum of the losses in place of their mean."""
        flaw = "the sensitivity is that of another objective (unnormalized lambda)"
        return "" if self.normalized else flaw

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the minimizer of J; raise a PrivacyError if the tolerance is not reached."""
        if negatives is None:
            raise ValueError("Logistic needs the rows of negatives")
        num_samples = len(rows) + len(negatives)
        strength = self.regularization / (1 if self.normalized else num_samples)
        weight, gradient_norm = fit_scoring_head(
            rows, negatives, strength, tolerance=self.tolerance
        )
        check_converged(gradient_norm, self.tolerance)
        return weight

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / (lambda N) + 2 tolerance / lambda."""
        num_samples = num_positives + num_negatives
        return scoring_sensitivity(self.regularization, num_samples, self.tolerance)

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """(1 + tolerance) / lambda: where J has no gradient, lambda w is a mean of short rows."""
        count = 1 if self.normalized else num_positives + num_negatives
        return (1 + self.tolerance) * count / self.regularization


def check_converged(gradient_norm: float, tolerance: float) -> None:
    """Raise a PrivacyError if the sensitivity does not cover a fit with this gradient."""
    if not gradient_norm <= tolerance:  # NaN too
        raise PrivacyError(
            f"the fit stopped at a gradient norm of {gradient_norm:.3g}, above the tolerance of "
            f"{tolerance:.3g} that its sensitivity assumes: raise its regularization or its "
            "tolerance, and fit again"
        )
