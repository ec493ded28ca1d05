"""The Gaussian mechanism: a vector with noise, and the record of what it cost."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.functional.privacy import Mechanism, gaussian_sigma


@dataclass(frozen=True)
class Release:
    """The record of one release: what it cost and how it was made.

    Attributes:
        epsilon: Infinite for a release without noise.
        delta: The delta of the guarantee.
        sigma: The standard deviation of the noise in every coordinate.
        sensitivity: The l2-sensitivity for which sigma was chosen.
        mechanism: ``analytic`` or ``classical``; ``none`` without noise.
        flaw: Why (epsilon, delta) is not what was really spent; empty where it is.
        what: The name of what was released.
    """

    epsilon: float
    delta: float
    sigma: float
    sensitivity: float
    mechanism: str
    flaw: str = ""
    what: str = "its scoring head"


def gaussian_release(
    vector: Tensor,
    sensitivity: float,
    epsilon: float,
    delta: float,
    mechanism: Mechanism = "analytic",
    noise_seed: int | None = None,
) -> tuple[Tensor, Release]:
    """Adds noise to a vector, so that what leaves is (epsilon, delta)-private.

    Args:
        vector: What is computed from private data, shape (d,).
        sensitivity: How far the replacement of one record can move it, in the l2-norm.
        epsilon: Greater than 0.
        delta: Between 0 and 1, both excluded.
        mechanism: How the noise is calibrated, see ``gaussian_sigma``.
        noise_seed: None takes every bit of the noise from the operating system. A seed makes a
            simulation repeatable; the guarantee then holds against nobody who knows or guesses it.

    Returns:
        The vector with noise, float64 on the CPU, and the record of its release.
    """
    sigma = gaussian_sigma(epsilon, delta, sensitivity, mechanism)
    noise = _standard_normal(len(vector), noise_seed)
    record = Release(epsilon, delta, sigma, sensitivity, mechanism)
    return vector.cpu().double() + sigma * noise, record


def release_without_noise(vector: Tensor) -> tuple[Tensor, Release]:
    """The vector itself, for comparison, and the record that nothing is promised."""
    return vector.cpu().double().clone(), Release(math.inf, 0.0, 0.0, 0.0, "none")


def _standard_normal(count: int, seed: int | None) -> Tensor:
    """Independent standard normal numbers, float64.

    torch's generator has 2^32 states to start from on the CPU, few enough to try them all and
    subtract the noise again; the operating system's source has no such list.
    """
    source = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 - see above
    return torch.tensor([source.gauss(0.0, 1.0) for _ in range(count)], dtype=torch.float64)
