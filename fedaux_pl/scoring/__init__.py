"""What clients release about their data, and how the server turns it into certainty scores.

To add one, subclass ``Scorer``, ``FeatureMap`` or ``Calibration`` in any module. The docstring of a
scorer proves its sensitivity; ``tests/scoring/test_audit.py`` attacks every scorer of this package.
"""

from fedaux_pl.scoring.calibration import Calibration, Sigmoid, Standardized
from fedaux_pl.scoring.class_scorers import ClassMeans, ClassScorer, ScoresAndHead
from fedaux_pl.scoring.composition import spent
from fedaux_pl.scoring.feature_maps import Centered, FeatureMap, Identity, PublicMap, Whitened
from fedaux_pl.scoring.ledger import Ledger, Total
from fedaux_pl.scoring.release import Privacy, Release, ReleasedHead
from fedaux_pl.scoring.scorers import Logistic, Mean, Scorer
from fedaux_pl.scoring.scoring import NormBound, Scoring

__all__ = [
    "Calibration",
    "Centered",
    "ClassMeans",
    "ClassScorer",
    "FeatureMap",
    "Identity",
    "Ledger",
    "Logistic",
    "Mean",
    "NormBound",
    "Privacy",
    "PublicMap",
    "Release",
    "ReleasedHead",
    "Scorer",
    "ScoresAndHead",
    "Scoring",
    "Sigmoid",
    "Standardized",
    "Total",
    "Whitened",
    "spent",
]
