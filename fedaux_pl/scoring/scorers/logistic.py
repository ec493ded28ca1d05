"""A logistic regression of a client's rows against public negatives: the scorer of the paper."""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional import fit_scoring_head, scoring_sensitivity
from fedaux_pl.scoring.scorers.checks import check_converged
from fedaux_pl.scoring.scorers.scorer import Scorer


@dataclass(frozen=True)
class Logistic(Scorer):
    """Releases the weight of a logistic regression of D_i against D^- (FedAUX, 3.4 and 3.5).

    The regression minimizes J, the mean of the losses of N = |D_i| + |D^-| samples plus
    (lambda/2) |w|^2.

    Sensitivity: 2 / (lambda N) + 2 tolerance / lambda. ``functional.scoring_sensitivity`` proves it
    for every weight at which the gradient of J has a norm of at most ``tolerance``. ``vector``
    refuses all other weights.

    With ``normalized=False``, J has the sum of the losses instead of their mean, as in the authors'
    code. The proof then bounds the sensitivity only by 2 / lambda + 2 tolerance N / lambda, which
    is N times the sensitivity that is claimed. Such releases are marked as flawed.

    Attributes:
        regularization: lambda > 0.
        normalized: Whether J has the mean of the losses. False is NOT private.
        tolerance: The largest gradient norm at which a weight is released.

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
        """The flaw of ``normalized=False``."""
        flaw = "the sensitivity is that of another objective (unnormalized lambda)"
        return "" if self.normalized else flaw

    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the minimizer of J, shape (k,).

        A fit that does not reach the tolerance raises a PrivacyError.
        """
        if negatives is None:
            raise ValueError("Logistic needs the rows of negatives")
        num_samples = len(rows) + len(negatives)
        # The sum of the losses with lambda has the same minimizer as their mean with lambda / N.
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
        """(1 + tolerance) / lambda, or N times that with ``normalized=False``.

        Where the gradient of J is 0, lambda w is a mean of N vectors of norm at most 1.
        """
        factor = 1 if self.normalized else num_positives + num_negatives
        return (1 + self.tolerance) * factor / self.regularization
