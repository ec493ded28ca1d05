"""Scoring by a logistic regression, as in the FedAUX paper, in three variants."""

from dataclasses import dataclass
from typing import Literal

from fedaux_pl.errors import check_setting
from fedaux_pl.scoring.calibration import Sigmoid
from fedaux_pl.scoring.feature_maps import Identity
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.recipe import ScoringRecipe
from fedaux_pl.scoring.scorers import Logistic
from fedaux_pl.scoring.scoring import Scoring


@dataclass(frozen=True)
class PaperScoring(ScoringRecipe):
    """Scores by a logistic regression of a client's features against the public negatives D^-.

    Every client releases the weight w_i of its regression (FedAUX, 3.4 and 3.5). The server scores
    x with the sigmoid of <w_i, row(x)>. A row is h_0(x), clipped to a norm and divided by it.

    Attributes:
        regularization: lambda of the regression.
        variant: ``private`` clips rows to the largest norm among D^-, which is public. The two
            other variants are NOT private and meant for comparison. ``literal`` follows the text of
            the paper, in which the norm is the largest among private data too. ``authors`` follows
            the authors' code, which in addition adds lambda to the sum of the losses instead of
            their mean. The paper and the authors' code use the noise of
            ``Privacy(mechanism="classical")``.

    Examples:
        >>> PaperScoring(regularization=0.01).create(Privacy()).flaw
        ''
        >>> PaperScoring(variant="literal").create(Privacy()).flaw
        'the norm bound is the largest of private data'
    """

    regularization: float = 0.1
    variant: Literal["private", "literal", "authors"] = "private"

    def __post_init__(self) -> None:
        is_known = self.variant in ("private", "literal", "authors")
        check_setting("variant", self.variant, is_known, "be 'private', 'literal' or 'authors'")
        self.create(Privacy())  # raises if the other option is invalid

    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring."""
        scorer = Logistic(self.regularization)
        if self.variant == "authors":
            scorer = Logistic(self.regularization, normalized=False, tolerance=1e-6)
        norm_bound: Literal["negatives", "private"] = "private"
        if self.variant == "private":
            norm_bound = "negatives"
        return Scoring(scorer, Identity(), Sigmoid(), norm_bound, privacy)
