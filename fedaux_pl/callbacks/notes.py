"""What a run should tell in words: that scores do nothing, that a class has no client, and so on.

Each function takes plain values that the server has, and returns a sentence or None.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedaux_pl.scoring import ReleasedHead

UNIFORM = 0.99
"""The share of effective teachers from which on teachers count as equally weighted."""

MAX_NAMES = 10
"""With more missing classes, a note has their number in place of the other names."""

_DEVIATIONS = 2.0


def describe_effective_teachers(effective: Sequence[float], teachers: Sequence[int]) -> str | None:
    """Says that the scores do not tell the clients apart.

    The number of effective teachers is 1 / sum_i w_i(x)^2 for weights w_i(x) that sum to 1, as a
    mean over x: n if n teachers have equal weights, 1 if one has all of it. If the weights vary by
    the factor v around 1/n (their coefficient of variation), it is n / (1 + v^2). At the share
    `UNIFORM` the weights vary by 10 %.

    Args:
        effective: The number of effective teachers in each round.
        teachers: The number of teachers in each round.

    Returns:
        A sentence if the weights are nearly equal in all rounds.

    Example:
        >>> describe_effective_teachers([9.99], [10]).split(":")[0]
        'effective teachers 9.99 of 10'
        >>> print(describe_effective_teachers([3.5], [10]))
        None
    """
    rounds = [(e, n) for e, n in zip(effective, teachers, strict=True) if n > 1]
    if not rounds or any(e < UNIFORM * n for e, n in rounds):
        return None
    last, count = rounds[-1]
    return (
        f"effective teachers {last:.2f} of {count}: the scores do not tell the clients apart, "
        "this run equals FedDF"
    )


def describe_missing_classes(
    round_: int, counts: NDArray[np.int64], classes: Sequence[str]
) -> str | None:
    """Says which classes nobody holds in a round.

    The counts of a client's classes are private: they are known in simulations only.

    Args:
        round_: The number of the round.
        counts: The samples of each class of the clients of the round, shape (n, C).
        classes: The names of the C classes.

    Example:
        >>> describe_missing_classes(3, np.array([[5, 0, 1], [2, 0, 0]]), ["cat", "dog", "bird"])
        'round 3: no client of the round holds class dog'
    """
    missing = [classes[k] for k in np.flatnonzero(counts.sum(axis=0) == 0).tolist()]
    if not missing:
        return None
    if len(missing) > MAX_NAMES:
        missing[MAX_NAMES:] = [f"{len(missing) - MAX_NAMES} others"]
    listed = " or ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return f"round {round_}: no client of the round holds class {listed}"


def describe_noise(heads: Sequence[ReleasedHead]) -> str | None:
    """Says that the noise of the released vectors hides how clients differ.

    A client releases w_i = v_i + noise with sigma_i in each of d coordinates. The scores use the
    differences between the clients. If there were none (equal v_i), then

        T = sum_i |w_i - mean(w)|^2 / sigma_i^2,

    with the mean by 1 / sigma_i^2, would have the mean (n - 1) d and at most the variance 2 n d, as
    sums of squares of normal variables have. The sentence is returned unless T exceeds that mean
    by two standard deviations. Both w_i and sigma_i are known to the server: nothing private is
    used.

    The noise of a single vector is no criterion: its norm sigma sqrt(d) may exceed that of v_i and
    the scores still work, as v_i lies in the few directions in which data vary. On the quickstart
    (20 clients, d = 32, one seed) at epsilon 1, 0.3 and 0.1 the norm of the noise was 1.8, 5.4 and
    15 times that of v_i, the excess of T 4.7, 0.8 and -0.6 standard deviations, and the weight of
    clients on samples of their own main class 4.6, 1.2 and 1.0 times the uniform one.

    Args:
        heads: The released vectors of one architecture.

    Returns:
        A sentence with both norms; None without noise, or for a single client.
    """
    if len(heads) < 2 or any(head.release.sigma == 0 for head in heads):
        return None
    vectors = torch.stack([head.weight.double().cpu() for head in heads])
    sigmas = vectors.new_tensor([head.release.sigma for head in heads])
    count, dimensions = vectors.shape
    weights = 1 / sigmas.square()
    mean = weights @ vectors / weights.sum()
    spread = float((weights @ (vectors - mean).square()).sum())
    if spread > (count - 1) * dimensions + _DEVIATIONS * math.sqrt(2 * dimensions * count):
        return None
    noise = dimensions * float(sigmas.square().mean())
    signal = max(0.0, float(vectors.square().sum(dim=1).mean()) - noise)
    return (
        f"noise exceeds the signal: the vectors that {count} clients released differ by no more "
        f"than their noise (of norm {math.sqrt(noise):.2g}, around vectors of norm about "
        f"{math.sqrt(signal):.2g}); raise epsilon, lower the dimensions of the feature map, or "
        "give clients more data"
    )
