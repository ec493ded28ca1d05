"""The paper's scoring (FedAUX, sections 3.4 and 3.5): a logistic regression of D_i against D^-.

Sensitivity. J is the mean of N = |D_i| + |D^-| losses log(1 + exp(-t <w, row>)) plus (lambda/2)
|w|^2. Let w and w' minimise J on neighbouring data sets. J is lambda-strongly convex, so lambda
|w - w'| <= |grad J(w')|, and there grad J differs from grad J', which is 0, in one loss alone: by
at most 2/N, as |l'| <= 1 and |row| <= 1 (Theorem 1; Chaudhuri et al. 2011). Hence |w - w'| <=
2 / (lambda N). A fit that stops at a gradient of norm ``tolerance`` is off by at most tolerance /
lambda, on either data set.

With ``normalized=False`` lambda weighs against the sum of the losses, as in the authors' code: the
true sensitivity is 2 / lambda, N times the claimed one. Such releases are recorded as flawed.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional import scoring_sensitivity
from fedaux_pl.modules import ScoringHead
from fedaux_pl.modules.scoring import UNNORMALISED
from fedaux_pl.scoring.base import Scorer


@dataclass(frozen=True)
class Logistic(Scorer):
    """Releases the weight of the logistic regression.

    Attributes:
        regularization: lambda.
        normalized: Whether lambda weighs against the mean of the loss. False: NOT private.
        tolerance: The norm of the gradient to which the regression is solved.
    """

    uses_negatives = True
    what = "its scoring head"

    regularization: float
    normalized: bool
    tolerance: float

    def __post_init__(self) -> None:
        self.sensitivity(1, 0)  # a wrong option fails here

    @property
    def flaw(self) -> str:
        """The unnormalised lambda."""
        return "" if self.normalized else UNNORMALISED

    def vector(self, positives: Tensor, negatives: Tensor, bound: float) -> Tensor:
        """The minimiser of J; an error where it is not reached to within the tolerance."""
        head = ScoringHead(
            regularization=self.regularization,
            norm_bound=bound,
            normalized=self.normalized,
            tolerance=self.tolerance,
        )
        head.fit_features(positives, negatives)
        return head.release_without_privacy()  # to this client itself; noise comes after

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """2 / (lambda N) + 2 tolerance / lambda."""
        return scoring_sensitivity(
            self.regularization, num_positives + num_negatives, self.tolerance
        )
