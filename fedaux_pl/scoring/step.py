"""A step of the plan of releases: what every client releases once, with its share of the budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from fedaux_pl.errors import PrivacyError
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.frozen_settings import step_settings
from fedaux_pl.scoring.noise import LARGEST_NOISE
from fedaux_pl.scoring.privacy import SecureSums
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scorers import Scorer, SummableScorer
from fedaux_pl.scoring.scoring import Scoring

SUM_MARGIN = 1e-3
"""A sum of integers may have this much more noise than it needs, because rows are rounded."""


@dataclass(frozen=True)
class Step:
    """One release of every client.

    Attributes:
        scoring: The options, with the scorer of this release.
        name: ``scores``, ``statistics``, ``counts`` or ``gradient``.
        share: Its share of the budget, as in ``Privacy.cost``.
        summed: Whether the server gets the sum over clients alone.

    Examples:
        >>> import torch
        >>> from fedaux_pl.scoring import MeanScoring, Privacy
        >>> features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
        >>> scoring = MeanScoring(dimensions=4).create(Privacy(epsilon=1.0))
        >>> public_map = scoring.fit_map(features, negatives=features[:20])
        >>> head = Step(scoring).release(0, features[20:], features[:20], public_map, noise_seed=0)
        >>> logits = head.logits(features)
        >>> scoring.calibration.scores(logits, reference=logits).shape
        torch.Size([60])
    """

    scoring: Scoring
    name: str = "scores"
    share: float = 1.0
    summed: bool = False

    @property
    def scorer(self) -> Scorer:
        """What computes the vector."""
        return self.scoring.scorer

    @property
    def summable(self) -> SummableScorer:
        """The scorer of a summed step."""
        assert isinstance(self.scorer, SummableScorer)  # noqa: S101 - the plan sums no others
        return self.scorer

    @property
    def secure(self) -> SecureSums:
        """The options of a summed step."""
        options = self.scoring.privacy.secure
        assert options is not None  # noqa: S101 - the plan sums only with them
        return options

    @property
    def sends(self) -> bool:
        """Whether the server sends tensors with it, which it computes from earlier releases."""
        return bool(self.scorer.sent_shapes(1, 1))  # at any sizes

    def with_sent(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return the step with the tensors that the server sends."""
        if not tensors:
            return self
        scorer = replace(self.scorer, **tensors)  # type: ignore[type-var]
        return replace(self, scoring=replace(self.scoring, scorer=scorer))

    def settings(self) -> dict[str, Any]:
        """Return all options that determine the release, as plain values."""
        scoring = self.scoring
        sums = scoring.privacy.sum_settings()
        return step_settings(scoring.release_settings(), sums, self.share, self.summed)

    def cost(self, sensitivity: float, simulated: bool, summands: int = 1) -> Release:
        """Return what the release of a vector with this l2-sensitivity costs."""
        release = self.scoring.privacy.cost(sensitivity, simulated, self.share, summands)
        return replace(release, flaw=self.scoring.flaw, what=self.scorer.what)

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
        what ``Scoring.fit_map`` returned at the server, ``noise_seed`` as in ``Privacy.release``,
        and ``labels`` are one-hot, shape (|D_i|, C), for a scorer that uses them.
        """
        scoring = self.scoring
        public_map = scoring.client_map(public_map, positives)
        if not self.scorer.uses_negatives:
            negatives = negatives[:0]
        rows = public_map.private_rows(positives)
        vector = self.scorer.vector(rows, labels, public_map.rows(negatives))
        sensitivity = scoring.sensitivity(len(positives), len(negatives))
        return self.add_noise(client, vector, sensitivity, public_map, noise_seed)

    def add_noise(
        self,
        client: int,
        vector: Tensor,
        sensitivity: float,
        public_map: PublicMap,
        noise_seed: int | None,
    ) -> ReleasedHead:
        """Add noise to a vector with this l2-sensitivity and return the release."""
        privacy = self.scoring.privacy
        weight, cost = privacy.release(vector, sensitivity, noise_seed, self.share)
        release = replace(cost, flaw=self.scoring.flaw, what=self.scorer.what)
        return ReleasedHead(client, weight, public_map, release)

    def check_release(
        self, head: ReleasedHead, num_positives: int, num_negatives: int, name: str = ""
    ) -> None:
        """Raise a PrivacyError unless a new, stored or received head has the noise it needs."""
        stated = head.release
        sensitivity = self.scoring.sensitivity(num_positives, num_negatives)
        needed = self.cost(sensitivity, stated.simulated, stated.summands)
        largest = needed.sigma * (1 + (SUM_MARGIN if self.summed else 1e-9))
        if not needed.sigma * (1 - 1e-9) <= stated.sigma <= largest:
            raise PrivacyError(
                f"the release of {name or f'client {head.client}'} has noise of standard "
                f"deviation {stated.sigma:g} at sensitivity {stated.sensitivity:g}, but epsilon "
                f"{needed.epsilon:g} and delta {needed.delta:g} need {needed.sigma:g} at "
                f"{needed.sensitivity:g}: it was made by other code or for other data and cannot "
                "be used; if it comes from a checkpoint or cache, start a new run without them"
            )

    def largest_value(self, num_positives: int, num_negatives: int) -> float:
        """Bound the numbers of a release: the scorer's largest norm plus the largest noise."""
        sensitivity = self.scoring.sensitivity(num_positives, num_negatives)
        sigma = self.cost(sensitivity, simulated=False).sigma
        norm = self.scorer.largest_norm(num_positives, num_negatives) * (1 + 1e-9)  # rounding
        return norm + LARGEST_NOISE * sigma


@dataclass(frozen=True)
class Collected:
    """The clients that are asked for a step, and what they have released so far."""

    step: Step
    clients: Sequence[int]
    heads: Sequence[ReleasedHead] = ()
