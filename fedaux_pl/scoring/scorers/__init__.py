"""Scorers: how a client summarizes its data in one vector, each with a proof of its sensitivity.

A client maps each of its records to a row of norm at most 1 by a public map, computes one vector
from the rows, and adds Gaussian noise. The noise is scaled by the sensitivity: how far the vector
can move, in the l2-norm, if one record is replaced. Replacing a record, together with its label,
changes at most one row. The number of records |D_i| and the number of classes C are public.

What the server computes from the noisy vector and from public data is post-processing, which costs
no privacy.
"""

from fedaux_pl.scoring.scorers.class_counts import ClassCounts
from fedaux_pl.scoring.scorers.class_statistics import ClassStatistics
from fedaux_pl.scoring.scorers.class_sums import ClassSums
from fedaux_pl.scoring.scorers.logistic import Logistic
from fedaux_pl.scoring.scorers.mean import Mean
from fedaux_pl.scoring.scorers.residuals import Residuals
from fedaux_pl.scoring.scorers.scorer import Scorer
from fedaux_pl.scoring.scorers.scores_and_head import ScoresAndHead
from fedaux_pl.scoring.scorers.summable_scorer import SummableScorer

__all__ = [
    "ClassCounts",
    "ClassStatistics",
    "ClassSums",
    "Logistic",
    "Mean",
    "Residuals",
    "Scorer",
    "ScoresAndHead",
    "SummableScorer",
]
