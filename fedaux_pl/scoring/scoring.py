"""Certainty scoring: what clients release, and how it becomes scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedaux_pl.errors import check_setting
from fedaux_pl.functional import shrink_to_mean
from fedaux_pl.scoring import frozen_settings
from fedaux_pl.scoring.calibration import Calibration, Standardized
from fedaux_pl.scoring.feature_maps import FeatureMap
from fedaux_pl.scoring.privacy import Privacy
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead, stack_heads
from fedaux_pl.scoring.scorers import Scorer

NormBound = float | Literal["negatives", "unit", "private"]
"""The norm to which rows are clipped: a number, or where it comes from."""


@dataclass(frozen=True)
class Scoring:
    """Everything that defines the clients' certainty scores; a ``ScoringRecipe`` creates it.

    ``plan`` makes of it the steps in which clients release.

    Attributes:
        scorer: What a client releases.
        feature_map: How features are mapped first, by statistics of the public auxiliary data.
        calibration: How the server turns a released vector into scores, at no cost in privacy; it
            has no part with class statistics.
        norm_bound: The norm to which feature vectors are clipped: a public number, ``negatives``
            (the largest norm among D^-), ``unit`` (all are scaled to norm 1), or ``private`` (the
            paper's, over private data too: NOT private, for comparison).
        privacy: The privacy of all that a client releases.
    """

    scorer: Scorer
    feature_map: FeatureMap
    calibration: Calibration = Standardized()  # noqa: RUF009 - frozen
    norm_bound: NormBound = "unit"
    privacy: Privacy = Privacy()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        bases = {"scorer": Scorer, "feature_map": FeatureMap, "calibration": Calibration}
        for name, base in bases.items():
            value = getattr(self, name)
            check_setting(name, value, isinstance(value, base), f"be a {base.__name__} object")
        bound = self.norm_bound
        is_positive = isinstance(bound, int | float) and 0 < bound < math.inf
        is_valid = is_positive or bound in ("negatives", "unit", "private")
        expected = "be 'negatives', 'unit', 'private' or a positive number"
        check_setting("norm_bound", bound, is_valid, expected)
        # it scales the vectors of clients differently: they have no sum and no mean
        if bound == "private" and (self.calibration.shrinks or self.scorer.uses_labels):
            raise ValueError(
                "norm_bound is private, which needs a scorer without labels and a calibration that "
                f"does not shrink, such as Sigmoid(), but got {self.scorer!r} and "
                f"{self.calibration!r}: choose a public one, such as unit"
            )

    @property
    def flaw(self) -> str:
        """Why (epsilon, delta) does not hold with these options; empty if it holds."""
        is_private = self.norm_bound == "private"
        flaw = "the norm bound is the largest of private data" if is_private else ""
        return "; ".join(filter(None, [flaw, self.scorer.flaw]))

    @property
    def depends_on_negatives(self) -> bool:
        """Whether a release depends on D^-, by its scorer or by its norm bound."""
        return self.scorer.uses_negatives or self.norm_bound in ("negatives", "private")

    def settings(self) -> dict[str, Any]:
        """Return all options as plain values; an object becomes its class name and its fields."""
        return {**self.release_settings(), **self.privacy.sum_settings()} | {
            "calibration": frozen_settings.plain_settings(self.calibration),
            "secret_noise": self.privacy.secret,
        }

    def release_settings(self) -> dict[str, Any]:
        """Return the options that determine a release, as plain values."""
        return frozen_settings.release_settings(
            self.scorer,
            self.feature_map,
            self.norm_bound,
            self.privacy.epsilon,
            self.privacy.delta,
            self.privacy.mechanism,
        )

    def fit_map(self, features: Tensor, negatives: Tensor) -> PublicMap:
        """Fit the public map to h_0(x) on D_aux, shape (N, d), and on D^-, at the server."""
        public_map = self.feature_map.fit(features)
        if self.norm_bound == "unit":
            return replace(public_map, unit=True)
        if not isinstance(self.norm_bound, str):
            return replace(public_map, bound=float(self.norm_bound))
        # "negatives"; also "private", whose bound client_map raises at the client
        bound = public_map.largest_norm(negatives)
        expected = "be positive and finite to serve as norm_bound"
        check_setting("the largest norm among the negatives", bound, 0 < bound < math.inf, expected)
        return replace(public_map, bound=bound)

    def client_map(self, public_map: PublicMap, positives: Tensor) -> PublicMap:
        """Return the map that a client uses: the public one unless norm_bound is ``private``."""
        if self.norm_bound != "private":
            return public_map
        return replace(public_map, bound=max(public_map.bound, public_map.largest_norm(positives)))

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """Bound how far replacing one record of D_i can move the vector before noise."""
        num_negatives = num_negatives if self.scorer.uses_negatives else 0
        return self.scorer.sensitivity(num_positives, num_negatives)

    def shrink_heads(self, heads: Sequence[ReleasedHead]) -> list[ReleasedHead]:
        """Shrink the heads of the clients of one architecture, if the calibration does so."""
        if not self.calibration.shrinks or not heads:
            return list(heads)
        shrunk = shrink_to_mean(*stack_heads(heads))
        return [replace(head, weight=weight) for head, weight in zip(heads, shrunk, strict=True)]
