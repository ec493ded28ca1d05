"""The paper's scoring, made private: a logistic regression on the features of h_0."""

from dataclasses import fields

from fedaux_pl import FedAUX
from fedaux_pl.scoring import Identity, Logistic, Privacy, Scoring, Sigmoid

PARTS = {
    "scorer": Logistic(),
    "feature_map": Identity(),
    "calibration": Sigmoid(),
    "norm_bound": "negatives",
    "shrink": False,
}


def with_privacy(options):
    """Options of a method or a Scoring, those of their Privacy in one object."""
    own = {part.name: options[part.name] for part in fields(Privacy) if part.name in options}
    return {k: v for k, v in options.items() if k not in own} | {"privacy": Privacy(**own)}


def paper_scoring(**options):
    """A Scoring with the paper's parts, unless options replace them."""
    return Scoring(**(PARTS | with_privacy(options)))


def paper_fedaux(**options):
    """FedAUX with the paper's parts and without memory, unless options replace them."""
    return FedAUX(**(PARTS | {"remember": False} | with_privacy(options)))
