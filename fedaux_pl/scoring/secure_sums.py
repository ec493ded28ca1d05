"""Secure sums of class statistics: the integers and the noise of a client, and what a sum makes.

A simulation and real sites use the same integers and the same noise. That the server sees the sum
alone is the work of ``fedaux_pl.sites.secure_sum``.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional.discrete_gaussian import discrete_gaussian, noise_of_sum
from fedaux_pl.scoring.class_scorers import ClassStatistics, SummableScorer
from fedaux_pl.scoring.feature_maps import PublicMap
from fedaux_pl.scoring.plan import further, has_second
from fedaux_pl.scoring.release import Release, ReleasedHead
from fedaux_pl.scoring.scoring import SUM_MARGIN, Scoring

ReadBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class SecureSum:
    """The sum over the clients of one architecture."""

    scoring: Scoring
    row_length: int
    num_classes: int
    summands: int  # the number of clients

    @property
    def scorer(self) -> SummableScorer:
        """The scorer."""
        assert isinstance(self.scoring.scorer, SummableScorer)  # noqa: S101 - the plan refuses
        return self.scoring.scorer

    @property
    def sensitivity(self) -> tuple[int, float]:
        """D^2 of the integers, and what one step of them is in the vector."""
        return self.scorer.integer_sensitivity(self.row_length, self.num_classes)

    @property
    def own_sigma(self) -> int:
        """The noise of each client in steps; 0 without noise."""
        privacy = self.scoring.privacy
        if privacy.epsilon is None:
            return 0
        multiplier = privacy.record(1.0, part=self.scoring.part).sigma
        return noise_of_sum(multiplier, self.sensitivity[0], self.summands - privacy.colluders)[1]

    def record(self, simulated: bool) -> Release:
        """Return the record of a client, in the units of the vector."""
        squared, unit = self.sensitivity
        record = self.scoring.record(math.sqrt(squared) * unit, simulated, self.summands)
        return replace(record, sigma=self.own_sigma * unit)

    def check(self) -> None:
        """Raise a ConfigurationError if ``Scoring.check_release`` would refuse what it makes."""
        needed = self.scoring.record(self.scoring.sensitivity(1, 0), False, self.summands).sigma
        about = f"a secure sum of {self.row_length} dimensions"
        if isinstance(self.scorer, ClassStatistics):
            about += f" with second_moment {self.scorer.second_moment:g}"
        try:
            sigma = self.record(simulated=False).sigma
        except ValueError as error:  # it leaves 64 bits
            raise ConfigurationError(
                f"{about} cannot have its noise ({error}): raise second_moment or epsilon, or set "
                "privacy.sums to local"
            ) from error
        if sigma > needed * (1 + SUM_MARGIN):
            raise ConfigurationError(
                f"{about} has noise of {sigma:.6g}, as its integers are rounded; expected at most "
                f"{SUM_MARGIN:.1%} above {needed:.6g}: use fewer dimensions or a lower "
                "second_moment, or set privacy.sums to local"
            )

    def add_noise(self, integers: Tensor, read: ReadBytes = os.urandom) -> Tensor:
        """Return what a client adds to the sum: its integers with its noise, on the CPU.

        ``read`` returns random bytes: those of the operating system, or ``seeded_bytes``.
        """
        integers = integers.cpu()
        if (sigma := self.own_sigma) == 0:
            return integers
        return integers + discrete_gaussian(len(integers), sigma, read)

    def head(
        self, clients: Sequence[int], total: Tensor, public_map: PublicMap, simulated: bool
    ) -> ReleasedHead:
        """Return the release that a sum of integers is."""
        weight = self.scorer.decode(total, self.num_classes)
        return ReleasedHead(clients[0], weight, public_map, self.record(simulated), tuple(clients))


def check_sums(scoring: Scoring, models: Mapping[str, nn.Module], num_classes: int) -> None:
    """Raise a ConfigurationError if planned secure sums of features of these models cannot be."""
    if not scoring.part.secure:
        return
    steps = [scoring]
    if has_second(scoring):
        steps.append(further(scoring, {"weight": torch.empty(0), "bias": torch.empty(0)}))
    for model in models.values():
        width = int(model.feature_dim)  # type: ignore[arg-type]
        dimensions = getattr(scoring.feature_map, "dimensions", None) or width
        for step in steps:
            least = scoring.privacy.least_clients
            SecureSum(step, min(dimensions, width), num_classes, least).check()


def seeded_bytes(seed: int, scoring: Scoring, integers: Tensor, attempt: int) -> ReadBytes:
    """Return the random bytes of a simulation, which its seed repeats.

    They depend on the integers and the settings, too, so that two releases share their noise only
    if they are equal, and on the number of the attempt.
    """
    settings = json.dumps([seed, attempt, scoring.release_settings()], sort_keys=True, default=str)
    digest = hashlib.sha256(settings.encode() + integers.cpu().numpy().tobytes()).digest()
    generator = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))

    def read(count: int) -> bytes:
        raw: bytes = generator.random_raw(-(-count // 8)).astype("<u8").tobytes()[:count]
        return raw

    return read
