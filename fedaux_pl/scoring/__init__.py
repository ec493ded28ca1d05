"""What clients release about their data, and how the server turns it into certainty scores.

To add one, subclass ``Scorer``, ``FeatureMap`` or ``Calibration`` in any module, as a frozen
dataclass whose fields are its options; ``FedAUX`` takes it, in YAML by its class path. The
docstring of a scorer proves its sensitivity; ``tests/scoring/test_audit.py`` attacks every scorer
of this package.
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
from fedaux_pl.scoring.release import Privacy, Release, ReleasedHead, SecureSums, spent
from fedaux_pl.scoring.scorers import Logistic, Mean, Scorer
from fedaux_pl.scoring.scoring import NormBound, Scoring
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
    "NormBound",
    "Privacy",
    "PublicMap",
    "Release",
    "ReleasedHead",
    "Residuals",
    "Scorer",
    "ScoresAndHead",
    "Scoring",
    "SecureSums",
    "Sigmoid",
    "Standardized",
    "Step",
    "SummableScorer",
    "Whitened",
    "spent",
]
