"""A secure sum: the server receives the sum of the clients' integer vectors, and no vector.

This file holds what a client adds to the sum, and what the server makes of the sum. A simulation
and real sites share it. ``fedaux_pl.sites.secure_sum`` masks the vectors, so that the server of
real sites sees only their sum.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional.discrete_gaussian import discrete_gaussian, noise_of_sum
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.frozen_settings import simulated_sum_settings
from fedaux_pl.scoring.planning import Plan
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scorers import ClassStatistics
from fedaux_pl.scoring.step import MOST_NOISE_OF_SUMS, Step

ReadBytes = Callable[[int], bytes]
"""A source of random bytes, which returns as many bytes as it is asked for."""


@dataclass(frozen=True)
class SecureSum:
    """The sum over the clients of one architecture."""

    step: Step
    row_length: int  # k
    num_classes: int  # C
    summands: int  # the number of clients

    @property
    def squared_sensitivity(self) -> int:
        """D^2 of a client's integer vector."""
        squared, _ = self.step.summable.integer_sensitivity(self.row_length, self.num_classes)
        return squared

    @property
    def unit(self) -> float:
        """The value that the integer 1 stands for in the decoded vector."""
        _, unit = self.step.summable.integer_sensitivity(self.row_length, self.num_classes)
        return unit

    @property
    def client_sigma(self) -> int:
        """The standard deviation of each client's noise in integers; 0 without noise.

        The noise of the clients that do not collude adds up to the noise that the sum needs.
        """
        privacy = self.step.scoring.privacy
        if privacy.epsilon is None:
            return 0
        multiplier = privacy.cost(sensitivity=1.0, share=self.step.share).sigma
        honest_clients = self.summands - self.step.secure.colluders
        _, client_sigma = noise_of_sum(multiplier, self.squared_sensitivity, honest_clients)
        return client_sigma

    def cost(self, simulated: bool) -> Release:
        """Return the cost of the sum for a client, in the units of the decoded vector."""
        sensitivity = math.sqrt(self.squared_sensitivity) * self.unit
        release = self.step.cost(sensitivity, simulated, self.summands)
        return replace(release, sigma=self.client_sigma * self.unit)

    def check(self) -> None:
        """Raise a ConfigurationError if ``Step.check_release`` would refuse the sum."""
        scorer = self.step.scorer
        sensitivity = self.step.scoring.sensitivity(num_positives=1, num_negatives=0)
        needed = self.step.cost(sensitivity, simulated=False, summands=self.summands).sigma
        subject = f"a secure sum of {self.row_length} dimensions"
        if isinstance(scorer, ClassStatistics):
            subject += f" with second_moment {scorer.second_moment:g}"
        try:
            sigma = self.cost(simulated=False).sigma
        except ValueError as error:  # the noise exceeds 64 bits
            raise ConfigurationError(
                f"{subject} cannot have its noise ({error}): raise second_moment or epsilon, or "
                "set privacy.secure to null"
            ) from error
        if sigma > needed * MOST_NOISE_OF_SUMS:
            raise ConfigurationError(
                f"{subject} has noise of {sigma:.6g}, because its rows are rounded to integers; "
                f"expected at most {MOST_NOISE_OF_SUMS - 1:.1%} above {needed:.6g}: use fewer "
                "dimensions or a lower second_moment, or set privacy.secure to null"
            )

    def add_noise(self, integers: Tensor, read: ReadBytes = os.urandom) -> Tensor:
        """Return the vector that a client adds to the sum: its integers with its noise, on the CPU.

        The noise is made of the random bytes that ``read`` returns: bytes from the operating
        system, or ``seeded_bytes``.
        """
        integers = integers.cpu()
        if self.client_sigma == 0:
            return integers
        return integers + discrete_gaussian(len(integers), self.client_sigma, read)

    def head(
        self, clients: Sequence[int], total: Tensor, public_map: PublicMap, simulated: bool
    ) -> ReleasedHead:
        """Return the release of these clients that the server decodes from their sum."""
        weight = self.step.summable.decode(total, self.num_classes)
        return ReleasedHead(clients[0], weight, public_map, self.cost(simulated), tuple(clients))


def check_sums(plan: Plan, models: Mapping[str, nn.Module], num_classes: int) -> None:
    """Raise a ConfigurationError if a secure sum of the plan is not possible.

    ``models`` are the networks of the architectures, whose features are summed.
    """
    for step in plan.values():
        if not step.summed:
            continue
        for model in models.values():
            feature_dim = int(model.feature_dim)  # type: ignore[arg-type]
            dimensions = getattr(step.scoring.feature_map, "dimensions", None) or feature_dim
            row_length = min(dimensions, feature_dim)
            SecureSum(step, row_length, num_classes, step.secure.least_clients).check()


def seeded_bytes(seed: int, step: Step, integers: Tensor) -> ReadBytes:
    """Return the source of the random bytes of a simulation, which can be repeated.

    The bytes depend on the seed, the settings and the client's integers. Two releases therefore
    share their noise only if they are equal.
    """
    settings = simulated_sum_settings(seed, step.settings())
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode() + integers.cpu().numpy().tobytes()).digest()
    generator = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))

    def read(count: int) -> bytes:
        num_words = -(-count // 8)  # of 8 bytes each, rounded up
        words: bytes = generator.random_raw(num_words).astype("<u8").tobytes()
        return words[:count]

    return read
