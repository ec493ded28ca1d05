"""How the server combines the class statistics and the class counts of several clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaux_pl.functional import (
    class_priors,
    pool_class_means,
    split_statistics,
    statistics_sensitivity,
)
from fedaux_pl.functional.class_statistics import known_counts
from fedaux_pl.scoring.released_head import ReleasedHead, stack_heads


@dataclass(frozen=True)
class PooledStatistics:
    """The statistics of all clients of one architecture together."""

    means: Tensor  # the mean row of each class, with noise, shape (C, k)
    variances: Tensor  # the variance of the noise in each entry of a mean, shape (C,)
    priors: Tensor  # the relative frequencies of the classes, shape (C,)
    moment: Tensor  # the sum of r r^T over all rows r, with noise, shape (k, k)
    noise: float  # the standard deviation of the noise in the diagonal of ``moment``


def pool_statistics(
    heads: Sequence[ReleasedHead], num_classes: int, rho: float
) -> PooledStatistics:
    """Pool the ``ClassStatistics`` of the clients of one architecture, or a single sum of them.

    ``rho`` is the weight of the second moment, ``ClassStatistics.second_moment``.
    """
    vectors, sigmas = stack_heads(heads)
    count_weight, _ = statistics_sensitivity(rho)
    parts = [split_statistics(vector, num_classes, rho) for vector in vectors]
    sums, counts, moments = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    means, variances = pool_class_means(sums, counts, sigmas, sigmas / count_weight)
    total_sigma = float(sigmas.norm())  # of the sum over clients
    return PooledStatistics(
        means,
        variances,
        priors=class_priors(counts.sum(dim=0), total_sigma / count_weight),
        moment=moments.sum(dim=0),
        noise=total_sigma / math.sqrt(rho),
    )


def counts_of_clients(heads: Sequence[ReleasedHead], num_classes: int, rho: float | None) -> Tensor:
    """Estimate how many records of each class each client has, shape (n, C).

    Args:
        heads: The clients' ``ClassStatistics``, also of several architectures, or ``ClassCounts``.
        num_classes: C.
        rho: The weight of the second moment in ``ClassStatistics``; None for ``ClassCounts``.
    """
    if rho is None:
        return known_counts(*stack_heads(heads))
    # Split each vector before stacking: its length depends on the architecture of the client.
    count_heads = []
    for head in heads:
        _, counts, _ = split_statistics(head.weight, num_classes, rho)
        count_heads.append(replace(head, weight=counts))
    counts, sigmas = stack_heads(count_heads)
    count_weight, _ = statistics_sensitivity(rho)
    return known_counts(counts, sigmas / count_weight)
