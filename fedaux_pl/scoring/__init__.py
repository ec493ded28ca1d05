"""What clients release about their data, and how the server turns it into certainty scores.

The option ``scoring`` takes a recipe: ``MeanScoring``, ``StatisticsScoring`` or ``PaperScoring``.
To add another one, subclass ``ScoringRecipe`` in any module, and ``Scorer``, ``FeatureMap`` or
``Calibration`` where you need a part of your own, as frozen dataclasses whose fields are options;
``FedAUX`` takes the recipe, in YAML by its class path. The docstring of a scorer proves its
sensitivity; ``tests/scoring/test_audit.py`` attacks every scorer of this package.
"""

from fedaux_pl.scoring.calibration import Calibration, Sigmoid, Standardized
from fedaux_pl.scoring.class_scorers import (
    ClassCounts,
    ClassStatistics,
    ClassSums,
    Residuals,
    ScoresAndHead,
    SummableScorer,
)
from fedaux_pl.scoring.feature_maps import Centered, FeatureMap, Identity, PublicMap, Whitened
from fedaux_pl.scoring.mean_scoring import MeanScoring
from fedaux_pl.scoring.paper_scoring import PaperScoring
from fedaux_pl.scoring.recipe import ScoringRecipe
from fedaux_pl.scoring.release import Privacy, Release, ReleasedHead, SecureSums, spent
from fedaux_pl.scoring.scorers import Logistic, Mean, Scorer
from fedaux_pl.scoring.scoring import NormBound, Scoring
from fedaux_pl.scoring.statistics_scoring import StatisticsScoring
from fedaux_pl.scoring.step import Collected, Step

__all__ = [
    "Calibration",
    "Centered",
    "ClassCounts",
    "ClassStatistics",
    "ClassSums",
    "Collected",
    "FeatureMap",
    "Identity",
    "Logistic",
    "Mean",
    "MeanScoring",
    "NormBound",
    "PaperScoring",
    "Privacy",
    "PublicMap",
    "Release",
    "ReleasedHead",
    "Residuals",
    "Scorer",
    "ScoresAndHead",
    "Scoring",
    "ScoringRecipe",
    "SecureSums",
    "Sigmoid",
    "Standardized",
    "StatisticsScoring",
    "Step",
    "SummableScorer",
    "Whitened",
    "spent",
]
