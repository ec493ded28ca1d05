"""The paper's scoring, made private: a logistic regression on the features of h_0."""

from fedaux_pl import FedAUX
from fedaux_pl.scoring import Budget, Identity, Logistic, Scoring, Sigmoid

PARTS = {
    "scorer": Logistic(),
    "feature_map": Identity(),
    "calibration": Sigmoid(),
    "norm_bound": "negatives",
    "shrink": False,
}


def paper_scoring(*, epsilon=0.1, delta=1e-5, mechanism="analytic", **options):
    """A Scoring with the paper's parts, unless options replace them."""
    return Scoring(**(PARTS | options), budget=Budget(epsilon, delta, mechanism))


def paper_fedaux(**options):
    """FedAUX with the paper's parts and without memory, unless options replace them."""
    return FedAUX(**(PARTS | {"remember": False} | options))
