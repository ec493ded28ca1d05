"""Gaussian noise: secret noise from the operating system, and simulated noise from a seed."""

import hashlib
import json
import math
import random
from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

LARGEST_NOISE = 38
"""No number that ``standard_normal`` draws lies further from 0, even if it is rounded to a grid."""


def add_secret_noise(vector: Tensor, sigma: float) -> Tensor:
    """Add noise from the operating system to a float64 vector, and round the sum to a grid."""
    noise = standard_normal(len(vector), random.SystemRandom())
    return round_to_grid(vector + sigma * noise, sigma)


def add_simulated_noise(vector: Tensor, sigma: float, settings: Sequence[object]) -> Tensor:
    """Add noise to a float64 vector that can be repeated and that protects nothing.

    The noise depends on the settings, which include a seed, and on the vector. Two releases
    therefore share their noise only if they are equal; otherwise their difference would cancel the
    noise and reveal the vector.
    """
    digest = hashlib.sha256(json.dumps(settings).encode() + vector.numpy().tobytes())
    source = random.Random(digest.digest())  # noqa: S311 - a simulation
    return vector + sigma * standard_normal(len(vector), source)


def standard_normal(count: int, source: random.Random) -> Tensor:
    """Draw Gaussian noise, float64 of shape (count,), with tails up to 37 standard deviations.

    The distribution function is inverted at a uniform number of 1,022 random bits, which has 53
    significant digits however close to 0 it is. Noise that is made from a number of 53 bits, such
    as that of ``random.gauss``, never exceeds 8.57 standard deviations: it cannot deliver deltas
    below 1e-17.
    """
    tails = [(source.getrandbits(1022) + 1) / 2**1023 for _ in range(count)]  # in (0, 1/2]
    signs = [1 - 2 * source.getrandbits(1) for _ in range(count)]
    return torch.from_numpy(np.array(signs) * ndtri(np.array(tails)))


def round_to_grid(vector: Tensor, sigma: float) -> Tensor:
    """Round to multiples of a power of 2 that lies between sigma / 2048 and sigma / 1024.

    The low-order bits of a floating-point sum reveal its terms (Mironov 2012). On the grid, each
    multiple stands for all numbers around it. Rounding errors then matter only at the borders
    between two multiples, which a number meets with a probability of about 2^-42 if it is not much
    larger than sigma.

    Examples:
        >>> 1024 * round_to_grid(torch.tensor([0.12345678]).double(), sigma=1.0)
        tensor([126.], dtype=torch.float64)
    """
    if sigma == 0:  # the release does not depend on the data
        return vector
    spacing = math.ldexp(1.0, math.frexp(sigma)[1] - 11)
    return (vector / spacing).round() * spacing
