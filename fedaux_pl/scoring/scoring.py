"""A scoring: what a client releases, and how the server turns it into certainty scores."""

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
"""The norm to which rows are clipped: a number, or the name of its source."""


@dataclass(frozen=True)
class Scoring:
    """All parts that define the clients' certainty scores. A ``ScoringRecipe`` creates it.

    ``plan`` then derives the steps in which clients release.

    Attributes:
        scorer: Computes the vector that a client releases.
        feature_map: Maps features before they are scored, by statistics of public auxiliary data.
        calibration: Turns released vectors into scores, at no cost in privacy. Class statistics do
            not use it.
        norm_bound: The norm to which rows are clipped: a public number; ``negatives`` for the
            largest norm among D^-; ``unit`` to scale every row to norm 1; ``private`` for the
            largest norm among private data too, as in the paper. ``private`` is NOT private and is
            meant for comparison.
        privacy: The privacy of everything that a client releases.
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
        # A private bound scales the vectors of clients differently, so that they cannot be pooled.
        if bound == "private" and (self.calibration.shrinks or self.scorer.uses_labels):
            raise ValueError(
                "norm_bound is private, which needs a scorer without labels and a calibration that "
                f"does not shrink, such as Sigmoid(), but got {self.scorer!r} and "
                f"{self.calibration!r}: choose a public one, such as unit"
            )

    @property
    def flaw(self) -> str:
        """Why (epsilon, delta) does not hold with these options; empty if it holds."""
        flaws = []
        if self.norm_bound == "private":
            flaws.append("the norm bound is the largest of private data")
        if self.scorer.flaw:
            flaws.append(self.scorer.flaw)
        return "; ".join(flaws)

    @property
    def depends_on_negatives(self) -> bool:
        """Whether a release depends on D^-, through its scorer or through its norm bound."""
        return self.scorer.uses_negatives or self.norm_bound in ("negatives", "private")

    def fit_map(self, features: Tensor, negatives: Tensor) -> PublicMap:
        """Fit the public map and set its norm bound, at the server.

        Args:
            features: h_0(x) on D_aux, shape (N, d).
            negatives: h_0(x) on D^-, shape (|D^-|, d).
        """
        public_map = self.feature_map.fit(features)
        if self.norm_bound == "unit":
            return replace(public_map, unit=True)
        if not isinstance(self.norm_bound, str):
            return replace(public_map, bound=float(self.norm_bound))
        # "negatives" and "private": ``client_map`` raises the bound of "private" at the client
        bound = public_map.largest_norm(negatives)
        expected = "be positive and finite to serve as norm_bound"
        check_setting("the largest norm among the negatives", bound, 0 < bound < math.inf, expected)
        return replace(public_map, bound=bound)

    def client_map(self, public_map: PublicMap, positives: Tensor) -> PublicMap:
        """Return the map that a client uses: the public map, unless norm_bound is ``private``.

        ``positives`` are h_0(x) on D_i, shape (|D_i|, d).
        """
        if self.norm_bound != "private":
            return public_map
        return replace(public_map, bound=max(public_map.bound, public_map.largest_norm(positives)))

    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """Bound how far replacing one record of D_i can move the vector before noise.

        The arguments are |D_i| and |D^-|.
        """
        num_negatives = num_negatives if self.scorer.uses_negatives else 0
        return self.scorer.sensitivity(num_positives, num_negatives)

    def shrink_heads(self, heads: Sequence[ReleasedHead]) -> list[ReleasedHead]:
        """Move the vectors of one architecture towards their mean, if the calibration asks for it.

        They move as far as noise explains their differences, see ``functional.shrink_to_mean``.
        """
        if not self.calibration.shrinks or not heads:
            return list(heads)
        shrunk = shrink_to_mean(*stack_heads(heads))
        return [replace(head, weight=weight) for head, weight in zip(heads, shrunk, strict=True)]

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

    def settings(self) -> dict[str, Any]:
        """Return all options as plain values, which a checkpoint compares."""
        return {
            **self.release_settings(),
            **self.privacy.sum_settings(),
            "calibration": frozen_settings.plain_settings(self.calibration),
            "secret_noise": self.privacy.secret,
        }
