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
from torch import Tensor, nn

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional.discrete_gaussian import discrete_gaussian, noise_of_sum
from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.frozen_settings import simulated_sum_settings
from fedaux_pl.scoring.planning import Plan
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.scorers import ClassStatistics
from fedaux_pl.scoring.step import SUM_MARGIN, Step

ReadBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class SecureSum:
    """The sum over the clients of one architecture."""

    step: Step
    row_length: int
    num_classes: int
    summands: int  # the number of clients

    @property
    def sensitivity(self) -> tuple[int, float]:
        """D^2 of the integers, and what one step of them is in the vector."""
        return self.step.summable.integer_sensitivity(self.row_length, self.num_classes)

    @property
    def client_sigma(self) -> int:
        """The noise of each client in integers; 0 without noise."""
        privacy = self.step.scoring.privacy
        if privacy.epsilon is None:
            return 0
        multiplier = privacy.cost(1.0, share=self.step.share).sigma
        honest = self.summands - self.step.secure.colluders
        return noise_of_sum(multiplier, self.sensitivity[0], honest)[1]

    def cost(self, simulated: bool) -> Release:
        """Return what it costs a client, in the units of the vector."""
        squared, unit = self.sensitivity
        release = self.step.cost(math.sqrt(squared) * unit, simulated, self.summands)
        return replace(release, sigma=self.client_sigma * unit)

    def check(self) -> None:
        """Raise a ConfigurationError if ``Step.check_release`` would refuse what it makes."""
        scorer = self.step.scorer
        sensitivity = self.step.scoring.sensitivity(1, 0)
        needed = self.step.cost(sensitivity, False, self.summands).sigma
        about = f"a secure sum of {self.row_length} dimensions"
        if isinstance(scorer, ClassStatistics):
            about += f" with second_moment {scorer.second_moment:g}"
        try:
            sigma = self.cost(simulated=False).sigma
        except ValueError as error:  # it leaves 64 bits
            raise ConfigurationError(
                f"{about} cannot have its noise ({error}): raise second_moment or epsilon, or set "
                "privacy.secure to null"
            ) from error
        if sigma > needed * (1 + SUM_MARGIN):
            raise ConfigurationError(
                f"{about} has noise of {sigma:.6g}, as its integers are rounded; expected at most "
                f"{SUM_MARGIN:.1%} above {needed:.6g}: use fewer dimensions or a lower "
                "second_moment, or set privacy.secure to null"
            )

    def add_noise(self, integers: Tensor, read: ReadBytes = os.urandom) -> Tensor:
        """Return what a client adds to the sum: its integers with its noise, on the CPU.

        ``read`` returns random bytes: those of the operating system, or ``seeded_bytes``.
        """
        integers = integers.cpu()
        if self.client_sigma == 0:
            return integers
        return integers + discrete_gaussian(len(integers), self.client_sigma, read)

    def head(
        self, clients: Sequence[int], total: Tensor, public_map: PublicMap, simulated: bool
    ) -> ReleasedHead:
        """Return the release that a sum of integers is."""
        weight = self.step.summable.decode(total, self.num_classes)
        return ReleasedHead(clients[0], weight, public_map, self.cost(simulated), tuple(clients))


def check_sums(plan: Plan, models: Mapping[str, nn.Module], num_classes: int) -> None:
    """Raise a ConfigurationError if planned secure sums of features of these models cannot be."""
    for step in plan.values():
        if not step.summed:
            continue
        for model in models.values():
            width = int(model.feature_dim)  # type: ignore[arg-type]
            dimensions = getattr(step.scoring.feature_map, "dimensions", None) or width
            least = step.secure.least_clients
            SecureSum(step, min(dimensions, width), num_classes, least).check()


def seeded_bytes(seed: int, step: Step, integers: Tensor) -> ReadBytes:
    """Return the random bytes of a simulation, which its seed repeats.

    They depend on the integers and the settings, too, so that two releases share their noise only
    if they are equal.
    """
    settings = simulated_sum_settings(seed, step.settings())
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode() + integers.cpu().numpy().tobytes()).digest()
    generator = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))

    def read(count: int) -> bytes:
        raw: bytes = generator.random_raw(-(-count // 8)).astype("<u8").tobytes()[:count]
        return raw

    return read
