"""Scoring by the class statistics of a client's features."""

from dataclasses import dataclass

from fedaux_pl.scoring.feature_maps import Whitened
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.recipe import ScoringRecipe
from fedaux_pl.scoring.scorers import ClassStatistics
from fedaux_pl.scoring.scoring import Scoring


@dataclass(frozen=True)
class StatisticsScoring(ScoringRecipe):
    """Scores by the class statistics of a client's features, which the client releases.

    Features are whitened by statistics of the public auxiliary data and scaled to norm 1. The
    server adds up the statistics of all clients and makes a classifier p(c | x) from the sum.

    Attributes:
        dimensions: The number of principal components; null chooses it by the noise.
        whitening: How far the variances of the components are made equal, from 0 to 1; null means
            0.5. ``Whitened`` explains both options.
        releases: 1 if clients release only their statistics. 2 if clients also release the gradient
            of the classifier; each of the two releases then has half of the budget. null chooses
            the number by the noise.

    Examples:
        >>> StatisticsScoring(releases=1).create(Privacy()).scorer
        ClassStatistics(second_moment=0.15, releases=1)
    """

    dimensions: int | None = None
    whitening: float | None = None
    releases: int | None = None

    def __post_init__(self) -> None:
        self.create(Privacy())  # raises if an option is invalid

    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring."""
        feature_map = Whitened(self.dimensions, self.whitening)
        return Scoring(ClassStatistics(releases=self.releases), feature_map, privacy=privacy)
