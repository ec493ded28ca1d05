"""Certainty scoring as a whole: what clients release, and how the server turns it into scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedaux_pl.errors import PrivacyError, check_setting
from fedaux_pl.functional import shrink_to_mean
from fedaux_pl.scoring.calibration import Calibration
from fedaux_pl.scoring.class_scorers import ClassScorer
from fedaux_pl.scoring.feature_maps import FeatureMap, PublicMap
from fedaux_pl.scoring.release import (
    LARGEST_NOISE,
    VERSION,
    Part,
    Privacy,
    Release,
    ReleasedHead,
    stack_heads,
)
from fedaux_pl.scoring.scorers import Scorer

NormBound = float | Literal["negatives", "unit", "private"]
"""The norm to which rows are clipped: a number, or where it comes from."""


@dataclass(frozen=True)
class Scoring:
    """Everything that defines the clients' certainty scores; ``FedAUX`` explains the options.

    Examples:
        >>> import torch
        >>> from fedaux_pl.scoring import Mean, Standardized, Whitened
        >>> features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
        >>> parts = {"scorer": Mean(), "feature_map": Whitened(4), "calibration": Standardized()}
        >>> scoring = Scoring(**parts, norm_bound="unit", privacy=Privacy(1.0), shrink=True)
        >>> public_map = scoring.fit_map(features, negatives=features[:20])
        >>> head = scoring.release(0, features[20:], features[:20], public_map, noise_seed=0)
        >>> logits = head.logits(features)
        >>> scoring.calibration.scores(logits, reference=logits).shape
        torch.Size([60])
    """

    scorer: Scorer
    feature_map: FeatureMap
    calibration: Calibration
    norm_bound: NormBound
    privacy: Privacy
    shrink: bool
    part: Part = Part()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        parts = {"scorer": Scorer, "feature_map": FeatureMap, "calibration": Calibration}
        for name, base in parts.items():
            part = getattr(self, name)
            check_setting(name, part, isinstance(part, base), f"be a {base.__name__} object")
        bound = self.norm_bound
        is_positive = isinstance(bound, int | float) and 0 < bound < math.inf
        is_valid = is_positive or bound in ("negatives", "unit", "private")
        expected = "be 'negatives', 'unit', 'private' or a positive number"
        check_setting("norm_bound", bound, is_valid, expected)
        if self.shrink and bound == "private":  # it scales the vectors of clients differently
            raise ValueError("norm_bound is private: set shrink to false, or choose a public one")

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
            "calibration": plain_settings(self.calibration),
            "shrink": self.shrink,
            "secret_noise": self.privacy.secret,
        }

    def release_settings(self) -> dict[str, Any]:
        """Return the options that determine a release, as plain values.

        Calibration and shrinkage are left out: changing them needs no new release, which would cost
        privacy again. The entries below are part of the keys of ledgers and caches: never rename,
        reorder or remove one.
        """
        parts = {} if self.part == Part() else {"part": {"share": self.part.share, "summands": 1}}
        sums = self.privacy.sum_settings() if self.part.secure else {}
        return {
            **parts,
            **sums,
            "scorer": plain_settings(self.scorer),
            "feature_map": plain_settings(self.feature_map),
            "norm_bound": self.norm_bound,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "mechanism": self.privacy.mechanism,
            "version": VERSION,
        }

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

    def record(self, sensitivity: float, simulated: bool, summands: int = 1) -> Release:
        """Return the record of a release of a vector with this l2-sensitivity."""
        record = self.privacy.record(sensitivity, simulated, self.part, summands)
        return replace(record, flaw=self.flaw, what=self.scorer.what)

    def release(
        self,
        client: int,
        positives: Tensor,
        negatives: Tensor,
        public_map: PublicMap,
        noise_seed: int | None,
        labels: Tensor | None = None,
    ) -> ReleasedHead:
        """Compute a client's release: the vector of its rows, with noise (FedAUX, Algorithm 1).

        ``positives`` and ``negatives`` are h_0(x) on D_i and D^-, shape (N, d), ``public_map`` is
        what ``fit_map`` returned at the server, ``noise_seed`` as in ``Privacy.release``, and
        ``labels`` are one-hot, shape (|D_i|, C), for a ``ClassScorer``.
        """
        public_map = self.client_map(public_map, positives)
        if not self.scorer.uses_negatives:
            negatives = negatives[:0]
        rows, others = public_map.private_rows(positives), public_map.rows(negatives)
        if isinstance(self.scorer, ClassScorer):
            if labels is None:
                raise ValueError(f"{type(self.scorer).__name__} needs the labels of the client")
            vector = self.scorer.class_vector(rows, labels, others)
        else:
            vector = self.scorer.vector(rows, others)
        sensitivity = self.sensitivity(len(positives), len(negatives))
        weight, record = self.privacy.release(vector, sensitivity, noise_seed, self.part)
        record = replace(record, flaw=self.flaw, what=self.scorer.what)
        return ReleasedHead(client, weight, public_map, record)

    def check_release(
        self, head: ReleasedHead, num_positives: int, num_negatives: int, name: str = ""
    ) -> None:
        """Raise a PrivacyError unless a new, stored or received head has the noise it needs."""
        found, sensitivity = head.release, self.sensitivity(num_positives, num_negatives)
        needed = self.record(sensitivity, found.simulated, found.summands)
        # a sum of integers has a little more noise, because rows are rounded
        largest = needed.sigma * (1 + (1e-3 if self.part.secure else 1e-9))
        if not needed.sigma * (1 - 1e-9) <= found.sigma <= largest:
            raise PrivacyError(
                f"the release of {name or f'client {head.client}'} has noise of standard "
                f"deviation {found.sigma:g} at sensitivity {found.sensitivity:g}, but epsilon "
                f"{needed.epsilon:g} and delta {needed.delta:g} need {needed.sigma:g} at "
                f"{needed.sensitivity:g}: it was made by other code or for other data and cannot "
                "be used; if it comes from a checkpoint or cache, start a new run without them"
            )

    def largest_entry(self, num_positives: int, num_negatives: int) -> float:
        """Bound the entries of a release: the scorer's largest norm plus the largest noise."""
        sigma = self.record(self.sensitivity(num_positives, num_negatives), simulated=False).sigma
        norm = self.scorer.largest_norm(num_positives, num_negatives) * (1 + 1e-9)  # rounding
        return norm + LARGEST_NOISE * sigma

    def shrink_heads(self, heads: Sequence[ReleasedHead]) -> list[ReleasedHead]:
        """Shrink the heads of the clients of one architecture, if ``shrink`` is set."""
        if not self.shrink or not heads:
            return list(heads)
        shrunk = shrink_to_mean(*stack_heads(heads))
        return [replace(head, weight=weight) for head, weight in zip(heads, shrunk, strict=True)]


def plain_settings(part: Scorer | FeatureMap | Calibration) -> dict[str, Any]:
    """Return the class name and the fields; a class of another package with its module."""
    kind, name = type(part), type(part).__name__
    if not kind.__module__.startswith("fedaux_pl."):
        name = f"{kind.__module__}.{kind.__qualname__}"
    sent = part.tensors() if isinstance(part, Scorer) else {}
    return {"class": name, **vars(part)} if not sent else {"class": name}
