"""The release of a vector: Gaussian noise, the record of its cost, and what the server gets."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.functional import gaussian_sigma
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.scoring.feature_maps import PublicMap


@dataclass(frozen=True)
class Release:
    """The record of one release: what it cost and how it was made.

    Attributes:
        epsilon: Infinite for a release without noise.
        delta: The delta of the guarantee; 0 without noise.
        sigma: The standard deviation of the noise in every coordinate; 0 without noise.
        sensitivity: The l2-sensitivity for which sigma was chosen; 0 without noise.
        mechanism: ``analytic`` or ``classical``; ``none`` without noise.
        flaw: Why (epsilon, delta) does not hold; empty if it holds.
        what: The name of what was released.
    """

    epsilon: float
    delta: float
    sigma: float
    sensitivity: float
    mechanism: str
    flaw: str = ""
    what: str = "its scoring head"


@dataclass(frozen=True)
class Budget:
    """The privacy budget of one release.

    Attributes:
        epsilon: Greater than 0; None for no noise and no guarantee.
        delta: Between 0 and 1, both excluded.
        mechanism: How the noise is calibrated, see ``gaussian_sigma``.

    Example:
        >>> vector, record = Budget(epsilon=0.5).release(torch.zeros(3), 0.02, noise_seed=0)
        >>> vector.shape, round(record.sigma, 4)
        (torch.Size([3]), 0.1406)
    """

    epsilon: float | None = 0.1
    delta: float = 1e-5
    mechanism: Mechanism = "analytic"

    def __post_init__(self) -> None:
        self.record(sensitivity=1.0)  # raises if an option is invalid

    def record(self, sensitivity: float) -> Release:
        """Returns the record of a release of a vector with this l2-sensitivity."""
        if self.epsilon is None:
            return Release(math.inf, 0.0, 0.0, 0.0, "none")
        sigma = gaussian_sigma(self.epsilon, self.delta, sensitivity, self.mechanism)
        return Release(self.epsilon, self.delta, sigma, sensitivity, self.mechanism)

    def release(
        self, vector: Tensor, sensitivity: float, noise_seed: int | None = None
    ) -> tuple[Tensor, Release]:
        """Adds the noise that makes the release of a vector (epsilon, delta)-private.

        Args:
            vector: What is computed from private data, shape (k,).
            sensitivity: An upper bound, proven by the caller, on how far replacing one record can
                move the vector in the l2-norm.
            noise_seed: None takes all noise from the operating system. A seed makes a simulation
                repeatable. The guarantee then does not hold against anyone who knows or guesses the
                seed, or who sees two releases with the same seed: their noise is the same up to its
                scale.

        Returns:
            The vector with noise (without if epsilon is None), float64 on the CPU, and the record.
        """
        record = self.record(sensitivity)
        vector = vector.detach().cpu().double()
        if self.epsilon is None:
            return vector.clone(), record
        return vector + record.sigma * _standard_normal(len(vector), noise_seed), record


@dataclass(frozen=True)
class ReleasedHead:
    """What a client sends before the first round: a vector after noise, and how to use it.

    Attributes:
        client: The client's id.
        weight: w_i, float64 of shape (k,); with noise unless the budget's epsilon is None.
        public_map: How features become rows. Public, except with the flawed
            ``norm_bound="private"``, where the bound depends on the client's data.
        release: The record of the release.
    """

    client: int
    weight: Tensor
    public_map: PublicMap
    release: Release

    def logits(self, features: Tensor) -> Tensor:
        """Computes <w_i, row(x)> for features h_0(x) of shape (N, d), float64 of shape (N,)."""
        rows = self.public_map.rows(features)
        return self.weight.to(rows.device) @ rows.T


def _standard_normal(count: int, seed: int | None) -> Tensor:
    # Not torch's CPU generator: it has only 2^32 seeds, which an attacker could try one by one.
    source = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 - simulation
    return torch.tensor([source.gauss(0.0, 1.0) for _ in range(count)], dtype=torch.float64)
