"""The paper's scoring, made private: a logistic regression on the features of h_0."""

from dataclasses import dataclass, fields

from fedaux_pl import FedAUX
from fedaux_pl.scoring import (
    Calibration,
    FeatureMap,
    Identity,
    Logistic,
    NormBound,
    Privacy,
    Scorer,
    Scoring,
    ScoringRecipe,
    Sigmoid,
)


@dataclass(frozen=True)
class Parts(ScoringRecipe):
    """Any parts; by default the paper's."""

    scorer: Scorer = Logistic()  # noqa: RUF009 - frozen
    feature_map: FeatureMap = Identity()  # noqa: RUF009 - frozen
    calibration: Calibration = Sigmoid()  # noqa: RUF009 - frozen
    norm_bound: NormBound = "negatives"

    def create(self, privacy):
        """A Scoring of these parts."""
        return Scoring(self.scorer, self.feature_map, self.calibration, self.norm_bound, privacy)


PARTS = {field.name for field in fields(Parts)}


def with_privacy(options):
    """Options of a method, those of their Privacy in one object and those of Parts in another."""
    options = dict(options)
    own = {part.name: options.pop(part.name) for part in fields(Privacy) if part.name in options}
    parts = {name: options.pop(name) for name in PARTS & options.keys()}
    scoring = {"scoring": Parts(**parts)} if parts else {}
    return options | scoring | {"privacy": Privacy(**own)}


def paper_scoring(**options):
    """A Scoring with the paper's parts, unless options replace them."""
    own = with_privacy(options)
    return own.get("scoring", Parts()).create(own["privacy"])


def paper_fedaux(**options):
    """FedAUX with the paper's parts and without memory, unless options replace them."""
    return FedAUX(**({"scoring": Parts(), "remember": False} | with_privacy(options)))
