"""A step of releases: the vector that every client releases once, and its share of the budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from fedaux_pl.errors import PrivacyError
from fedaux_pl.scoring import frozen_settings
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.noise import LARGEST_NOISE
from fedaux_pl.scoring.privacy import SecureSums
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scorers import Scorer, SummableScorer
from fedaux_pl.scoring.scoring import Scoring

MOST_NOISE_OF_SUMS = 1 + 1e-3
"""The largest allowed ratio of a secure sum's noise to the noise that it needs.

It exceeds 1 because the rows of a secure sum are rounded to integers.
"""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Step:
    """One release of every client.

    Attributes:
        scoring: The options of the step, in which the scorer is the scorer of this step.
        name: ``scores``, ``statistics``, ``counts`` or ``gradient``.
        share: The step's share of the privacy budget, as in ``Privacy.cost``.
        summed: Whether the server receives only the sum over clients, by a secure sum.

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
        """The scorer that computes the vector."""
        return self.scoring.scorer

    @property
    def summable(self) -> SummableScorer:
        """The scorer of a summed step."""
        assert isinstance(self.scorer, SummableScorer)  # noqa: S101 - the plan sums no others
        return self.scorer

    @property
    def secure(self) -> SecureSums:
        """The options of secure sums, for a summed step."""
        options = self.scoring.privacy.secure
        assert options is not None  # noqa: S101 - the plan sums only with them
        return options

    @property
    def sends(self) -> bool:
        """Whether the server must send tensors to the clients before they release.

        It computes them from earlier releases.
        """
        any_length = 1
        return bool(self.scorer.sent_shapes(any_length, any_length))

    def with_sent(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return the step with the tensors that the server sends."""
        if not tensors:
            return self
        scorer = replace(self.scorer, **tensors)  # type: ignore[type-var]
        return replace(self, scoring=replace(self.scoring, scorer=scorer))

    def settings(self) -> dict[str, Any]:
        """Return all options that determine the release, as plain values."""
        sums = self.scoring.privacy.sum_settings()
        release = self.scoring.release_settings()
        return frozen_settings.step_settings(release, sums, self.share, self.summed)

    def release(
        self,
        client: int,
        positives: Tensor,
        negatives: Tensor,
        public_map: PublicMap,
        noise_seed: int | None,
        labels: Tensor | None = None,
    ) -> ReleasedHead:
        """Compute the release of a client: the vector of its rows, with noise (Algorithm 1).

        Args:
            client: The number of the client.
            positives: h_0(x) on D_i, shape (|D_i|, d).
            negatives: h_0(x) on D^-, shape (|D^-|, d), which may be empty if the scorer does not
                use them.
            public_map: The map that ``Scoring.fit_map`` returned at the server.
            noise_seed: None for secret noise, a seed for simulated noise, as in
                ``Privacy.release``.
            labels: The one-hot labels of D_i, shape (|D_i|, C), if the scorer uses labels.
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
        """Add noise to a vector of this l2-sensitivity, and return the release."""
        privacy = self.scoring.privacy
        weight, cost = privacy.release(vector, sensitivity, noise_seed, self.share)
        return ReleasedHead(client, weight, public_map, self._described(cost))

    def cost(self, sensitivity: float, simulated: bool, summands: int = 1) -> Release:
        """Return the cost of releasing a vector of this l2-sensitivity, see ``Privacy.cost``."""
        privacy = self.scoring.privacy
        return self._described(privacy.cost(sensitivity, simulated, self.share, summands))

    def _described(self, cost: Release) -> Release:
        """Return a cost that says what is released, and why its (epsilon, delta) may not hold."""
        return replace(cost, flaw=self.scoring.flaw, what=self.scorer.what)

    def check_release(
        self, head: ReleasedHead, num_positives: int, num_negatives: int, name: str = ""
    ) -> None:
        """Raise a PrivacyError unless a head has the noise that this step needs.

        The head may be new, stored or received. ``name`` is the name of the client for the message.
        """
        stated = head.release
        sensitivity = self.scoring.sensitivity(num_positives, num_negatives)
        needed = self.cost(sensitivity, stated.simulated, stated.summands)
        smallest_sigma = needed.sigma * (1 - _ROUNDING)
        largest_sigma = needed.sigma * (MOST_NOISE_OF_SUMS if self.summed else 1 + _ROUNDING)
        if not smallest_sigma <= stated.sigma <= largest_sigma:
            raise PrivacyError(
                f"the release of {name or f'client {head.client}'} has noise of standard "
                f"deviation {stated.sigma:g} at sensitivity {stated.sensitivity:g}, but epsilon "
                f"{needed.epsilon:g} and delta {needed.delta:g} need {needed.sigma:g} at "
                f"{needed.sensitivity:g}: it was made by other code or for other data and cannot "
                "be used; if it comes from a checkpoint or cache, start a new run without them"
            )

    def largest_value(self, num_positives: int, num_negatives: int) -> float:
        """Bound the entries of a release: the scorer's largest norm plus the largest noise."""
        sensitivity = self.scoring.sensitivity(num_positives, num_negatives)
        sigma = self.cost(sensitivity, simulated=False).sigma
        norm = self.scorer.largest_norm(num_positives, num_negatives) * (1 + _ROUNDING)
        return norm + LARGEST_NOISE * sigma


@dataclass(frozen=True)
class Collected:
    """The releases of a step that the server has collected so far."""

    step: Step
    clients: Sequence[int]  # the clients that the server asks for a release
    heads: Sequence[ReleasedHead] = ()  # what these clients have released so far
