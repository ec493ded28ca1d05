"""The class statistics of several clients, pooled at the server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.functional import (
    class_priors,
    pool_class_means,
    split_statistics,
    statistics_sensitivity,
)
from fedaux_pl.functional.class_statistics import known_counts
from fedaux_pl.scoring.release import ReleasedHead


@dataclass(frozen=True)
class PooledStatistics:
    """The statistics of the clients of one architecture."""

    means: Tensor  # the mean row of each class with noise, shape (C, k)
    variances: Tensor  # of the noise in an entry of each mean, shape (C,)
    priors: Tensor  # the shares of the classes, shape (C,)
    moment: Tensor  # the sum of r r^T with noise, shape (k, k)
    noise: float  # the standard deviation of the noise in its diagonal


def pool_statistics(
    heads: Sequence[ReleasedHead], num_classes: int, rho: float
) -> PooledStatistics:
    """Pool the clients' ``ClassStatistics`` with weight rho of the second moment, or their sum."""
    vectors, sigmas = stack_heads(heads)
    constant, _ = statistics_sensitivity(rho)
    parts = [split_statistics(vector, num_classes, rho) for vector in vectors]
    sums, counts, moments = (torch.stack(entries) for entries in zip(*parts, strict=True))
    total = float(sigmas.norm())
    return PooledStatistics(
        *pool_class_means(sums, counts, sigmas, sigmas / constant),
        priors=class_priors(counts.sum(dim=0), total / constant),
        moment=moments.sum(dim=0),
        noise=total / math.sqrt(rho),
    )


def count_classes(heads: Sequence[ReleasedHead], num_classes: int, rho: float | None) -> Tensor:
    """Return the known class counts of each client, shape (n, C).

    The heads are ``ClassStatistics`` with this weight rho or, if it is None, ``ClassCounts``.
    """
    counts, sigmas = stack_heads(heads)
    if rho is not None:
        counts = torch.stack([split_statistics(own, num_classes, rho)[1] for own in counts])
        sigmas = sigmas / statistics_sensitivity(rho)[0]
    return known_counts(counts, sigmas)


def stack_heads(heads: Sequence[ReleasedHead]) -> tuple[Tensor, Tensor]:
    """The vectors, shape (n, length), and the standard deviations of their noise, shape (n,)."""
    vectors = torch.stack([head.weight for head in heads])
    return vectors, vectors.new_tensor([head.release.total_sigma for head in heads])
