"""Scoring by class statistics: every client releases sums of its whitened features by class."""

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
    server makes a classifier p(c | x) of the sum of the statistics of all clients.

    Attributes:
        dimensions: The number of principal components; null to choose it by the noise.
        whitening: How far the variances of the components are made equal, from 0 to 1; null for
            0.5. ``Whitened`` explains both.
        releases: 2 if clients also release the gradient of the classifier, for which the first
            release leaves half of the budget; 1 if not; null to choose by the noise.

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
