"""Scoring by the mean of a client's features: the default of FedAUX."""

from dataclasses import dataclass

from fedaux_pl.scoring.calibration import Standardized
from fedaux_pl.scoring.feature_maps import Whitened
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.recipe import ScoringRecipe
from fedaux_pl.scoring.scorers import Mean
from fedaux_pl.scoring.scoring import Scoring


@dataclass(frozen=True)
class MeanScoring(ScoringRecipe):
    """Scores by the mean w_i of a client's feature vectors, which the client releases.

    Features are whitened by statistics of the public auxiliary data and scaled to norm 1. The
    server moves the means towards their average, as far as noise explains their differences. It
    then scores x with exp(sharpness z), where z are the logits <w_i, row(x)> of client i,
    standardized over the distillation data.

    Attributes:
        dimensions: The number of principal components; null chooses it by the noise.
        whitening: How far the variances of the components are made equal, from 0 to 1; null chooses
            it by the number of dimensions. ``Whitened`` explains both options.
        sharpness: How much more weight the more certain clients get, above 0 and at most 20.

    Examples:
        >>> MeanScoring(dimensions=64).create(Privacy()).feature_map
        Whitened(dimensions=64, whitening=None)
    """

    dimensions: int | None = None
    whitening: float | None = None
    sharpness: float = 3.0

    def __post_init__(self) -> None:
        self.create(Privacy())  # raises if an option is invalid

    def create(self, privacy: Privacy) -> Scoring:
        """Create the scoring."""
        feature_map = Whitened(self.dimensions, self.whitening)
        return Scoring(Mean(), feature_map, Standardized(self.sharpness), privacy=privacy)
