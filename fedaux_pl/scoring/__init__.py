"""What clients release about their data, and how the server makes certainty scores of it.

A further scoring is one file with a ``Scorer``, whose docstring proves its sensitivity, and one
line in ``SCORERS``; ``tests/scoring/test_audit.py`` attacks it.
"""

from fedaux_pl.functional import Release, spent
from fedaux_pl.scoring.base import Budget, Scorer
from fedaux_pl.scoring.calibration import CALIBRATIONS, Sigmoid, Standardised
from fedaux_pl.scoring.head import ReleasedHead
from fedaux_pl.scoring.logistic import Logistic
from fedaux_pl.scoring.maps import FEATURE_MAPS, Centred, PublicMap, Unmapped, Whitened
from fedaux_pl.scoring.mean import Mean
from fedaux_pl.scoring.settings import SCORERS, NormBound, Scoring

__all__ = [
    "CALIBRATIONS",
    "FEATURE_MAPS",
    "SCORERS",
    "Budget",
    "Centred",
    "Logistic",
    "Mean",
    "NormBound",
    "PublicMap",
    "Release",
    "ReleasedHead",
    "Scorer",
    "Scoring",
    "Sigmoid",
    "Standardised",
    "Unmapped",
    "Whitened",
    "spent",
]
