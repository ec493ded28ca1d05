"""What several releases about the same data cost together.

Basic composition (Dwork and Roth 2014, Theorem 3.16) adds the epsilons and the deltas. For Gaussian
noise more is known: a release with noise sigma at sensitivity D is mu-GDP with mu = D / sigma, and
releases of mu_1, ..., mu_k, each of which may depend on the results of those before it, are
together exactly as private as one with mu = sqrt(mu_1^2 + ... + mu_k^2) (Dong, Roth and Su 2022,
Corollary 3.3). That one's delta for any epsilon is the analytic Gaussian mechanism's.
"""

import math
from collections.abc import Sequence

from scipy.optimize import brentq

from fedaux_pl.functional.privacy import gaussian_log_delta
from fedaux_pl.functional.release import Release


def spent(releases: Sequence[Release], delta: float | None = None) -> tuple[float, float]:
    """(epsilon, delta) of all releases of one client together.

    Args:
        releases: The records. One that is flawed or without noise promises nothing: it costs an
            infinite epsilon.
        delta: The delta at which to state the sum; None for the sum of the records' deltas, at
            which basic composition speaks too.

    Returns:
        The smaller epsilon of basic and Gaussian composition, and delta.
    """
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, but is {delta}")
    basic = sum(release.epsilon for release in releases), sum(r.delta for r in releases)
    stated = basic[1] if delta is None else delta
    if not releases:
        return 0.0, stated
    if any(release.flaw or release.mechanism == "none" for release in releases):
        return math.inf, stated
    mu = math.hypot(*(_mu(release) for release in releases))
    epsilon = 0.0 if mu == 0 else gaussian_epsilon(stated, 1 / mu)
    return (min(basic[0], epsilon) if basic[1] <= stated else epsilon), stated


def _mu(release: Release) -> float:
    """D / sigma; a release that does not depend on the data needs no noise and tells nothing."""
    return 0.0 if release.sensitivity == 0 else release.sensitivity / release.sigma


def gaussian_epsilon(delta: float, multiplier: float) -> float:
    """The smallest epsilon >= 0 that noise of ``multiplier`` x D attains at ``delta``.

    Args:
        delta: At least 1e-300; at 1 and above nothing is promised, and epsilon is 0.
        multiplier: sigma / D, positive.
    """
    if not delta >= 1e-300 or not 0 < multiplier < math.inf:
        raise ValueError(
            "delta must be at least 1e-300 and the multiplier positive and finite, but they are "
            f"{delta} and {multiplier}"
        )
    goal = math.log(delta)

    def excess(epsilon: float) -> float:
        # Far out in the tail rounding can turn delta into 0: any finite stand-in below will do.
        return max(gaussian_log_delta(epsilon, multiplier), -1e300) - goal

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    root = float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-13))
    # A root is found to within rounding; step to the private side of it.
    while excess(root) > 0:
        root += 1e-12 * (1 + root)
    return root
