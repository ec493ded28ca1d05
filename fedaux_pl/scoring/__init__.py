"""What clients release about their data, and how the server turns it into certainty scores.

The option ``scoring`` takes a recipe: ``MeanScoring``, ``StatisticsScoring`` or ``PaperScoring``.
To score in a way of your own, subclass ``ScoringRecipe`` in any module, and pass an object of the
class in Python or its class path in YAML. A recipe combines a scorer, a feature map and a
calibration; subclass ``Scorer``, ``FeatureMap`` or ``Calibration`` if you need a part of your own.
All of them are frozen dataclasses whose fields are options. The docstring of a scorer proves its
sensitivity, and ``tests/scoring`` attacks every scorer of this package.

In the order of a run, the files of this folder are:

- ``recipe.py``, ``mean_scoring.py``, ``statistics_scoring.py``, ``paper_scoring.py``: the options,
  which create a ``Scoring`` (``scoring.py``) with its ``Privacy`` (``privacy.py``).
- ``planning.py``: the steps in which clients release, and their shares of the privacy budget.
  ``choices.py`` chooses the options that the user left open.
- ``feature_maps.py`` fits a ``PublicMap`` (``public_map.py``), which turns features into rows.
- ``step.py``: a release of a client. ``scorers/`` computes the vector, and ``noise.py`` adds noise.
  ``secure_sum.py`` does the same for a sum over clients.
- ``released_head.py``: the vector that the server receives. ``packing.py`` stores it,
  ``frozen_settings.py`` finds it again, and ``costs.py`` says what it costs.
- ``calibration.py`` and ``pooling.py``: how the server uses the vectors.
- ``guarantee.py`` and ``privacy_statements.py``: what a run prints about its privacy.
"""

from fedaux_pl.scoring.calibration import Calibration, Sigmoid, Standardized
from fedaux_pl.scoring.choices import PublicNumbers
from fedaux_pl.scoring.costs import Release, spent
from fedaux_pl.scoring.feature_maps import Centered, FeatureMap, Identity, Whitened
from fedaux_pl.scoring.frozen_settings import RELEASE_VERSION, plain_settings
from fedaux_pl.scoring.guarantee import (
    COSTS_AGAIN,
    UPDATES_IN_THE_CLEAR,
    Guarantee,
    describe_again,
    describe_sent,
    tabulate_releases,
)
from fedaux_pl.scoring.mean_scoring import MeanScoring
from fedaux_pl.scoring.packing import pack, unpack
from fedaux_pl.scoring.paper_scoring import PaperScoring
from fedaux_pl.scoring.planning import Plan, check_records, first_step, plan
from fedaux_pl.scoring.pooling import counts_of_clients, pool_statistics
from fedaux_pl.scoring.privacy import Privacy, SecureSums
from fedaux_pl.scoring.privacy_statements import describe_all, describe_privacy
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.recipe import ScoringRecipe
from fedaux_pl.scoring.released_head import ReleasedHead, clients_of, stack_heads
from fedaux_pl.scoring.scorers import (
    ClassCounts,
    ClassStatistics,
    ClassSums,
    Logistic,
    Mean,
    Residuals,
    Scorer,
    ScoresAndHead,
    SummableScorer,
)
from fedaux_pl.scoring.scoring import NormBound, Scoring
from fedaux_pl.scoring.secure_sum import ReadBytes, SecureSum, check_sums, seeded_bytes
from fedaux_pl.scoring.statistics_scoring import StatisticsScoring
from fedaux_pl.scoring.step import Collected, Step

__all__ = [
    "COSTS_AGAIN",
    "RELEASE_VERSION",
    "UPDATES_IN_THE_CLEAR",
    "Calibration",
    "Centered",
    "ClassCounts",
    "ClassStatistics",
    "ClassSums",
    "Collected",
    "FeatureMap",
    "Guarantee",
    "Identity",
    "Logistic",
    "Mean",
    "MeanScoring",
    "NormBound",
    "PaperScoring",
    "Plan",
    "Privacy",
    "PublicMap",
    "PublicNumbers",
    "ReadBytes",
    "Release",
    "ReleasedHead",
    "Residuals",
    "Scorer",
    "ScoresAndHead",
    "Scoring",
    "ScoringRecipe",
    "SecureSum",
    "SecureSums",
    "Sigmoid",
    "Standardized",
    "StatisticsScoring",
    "Step",
    "SummableScorer",
    "Whitened",
    "check_records",
    "check_sums",
    "clients_of",
    "counts_of_clients",
    "describe_again",
    "describe_all",
    "describe_privacy",
    "describe_sent",
    "first_step",
    "pack",
    "plain_settings",
    "plan",
    "pool_statistics",
    "seeded_bytes",
    "spent",
    "stack_heads",
    "tabulate_releases",
    "unpack",
]
