"""Composition: what several releases about the same data cost together.

Basic composition (Dwork and Roth 2014, Theorem 3.16) adds the epsilons and the deltas. Gaussian
noise composes better: a release with noise sigma at sensitivity D is mu-GDP with mu = D / sigma,
and releases that are mu_1-GDP, ..., mu_k-GDP are together mu-GDP with mu = sqrt(mu_1^2 + ... +
mu_k^2), also if each is chosen by the results of the earlier ones (Dong, Roth and Su 2022,
Corollary 3.3). A mu-GDP release is (epsilon, delta)-private for every epsilon >= 0 with the delta
of the analytic Gaussian mechanism at sigma / D = 1 / mu. Both need independent noise.
"""

import math
from collections.abc import Sequence

from fedaux_pl.functional import gaussian_epsilon
from fedaux_pl.scoring.release import Release


def spent(releases: Sequence[Release], delta: float | None = None) -> tuple[float, float]:
    """Computes (epsilon, delta) of all releases of one client together.

    Args:
        releases: The records of releases with independent noise. A release that is flawed, has no
            noise or is simulated guarantees nothing: it costs an infinite epsilon.
        delta: The delta at which to state the total; None for the sum of the records' deltas.

    Returns:
        The smaller epsilon of basic and Gaussian composition, and delta. Basic composition applies
        only if delta is at least the sum of the records' deltas.

    Example:
        >>> from fedaux_pl.scoring import Privacy
        >>> once = Privacy(epsilon=0.1, delta=1e-5).record(sensitivity=1.0)
        >>> epsilon, delta = spent([once, once], delta=1e-5)
        >>> round(epsilon, 3)
        0.146
    """
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, but is {delta}")
    basic = sum(release.epsilon for release in releases), sum(r.delta for r in releases)
    stated = basic[1] if delta is None else delta
    if not releases:
        return 0.0, stated
    mu = math.hypot(*(release.mu for release in releases))
    if mu == math.inf:
        return math.inf, stated
    epsilon = 0.0 if mu == 0 else gaussian_epsilon(stated, 1 / mu)
    return (min(basic[0], epsilon) if basic[1] <= stated else epsilon), stated
