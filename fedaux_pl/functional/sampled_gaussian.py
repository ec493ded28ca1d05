"""What DP-SGD costs: the composition of sampled Gaussian mechanisms, and the noise that it needs.

A step takes each record with probability q into its batch, independently, clips the gradient of
every record of the batch to norm 1, and adds Gaussian noise of standard deviation z to their sum.
Neighboring data sets differ in one record that is replaced, as in ``privacy.py``.

**Theorem.** For every a >= 0 the hockey-stick divergence H_a of a step on two neighboring data sets
is at most that of P = (1 - q) N(0, z^2) + q N(1, z^2) and Q = (1 - q) N(0, z^2) + q N(-1, z^2).

Proof. Let g and g' be the clipped gradients of the replaced record on either data set. Given which
of the other records are in the batch, whose sum is s, the step returns (1 - q) N(s) + q N(s + g) or
(1 - q) N(s) + q N(s + g'). H_a is jointly convex, so the worst s bounds it, and does not change
under translation: s = 0. Let z = 1 and a >= 1; for a < 1 exchange the data sets, since
H_a(P, Q) = a H_{1/a}(Q, P) + 1 - a. Under X = g + Z with Z ~ N(0, I), the densities of N(0) and
N(g') relative to that of N(g) are e^A and e^B with the Gaussian variables

    A = -<Z, g> - |g|^2 / 2,    B = -<Z, g - g'> - |g - g'|^2 / 2,

whose exponentials have mean 1. So H_a = E (q - (a - 1)(1 - q) e^A - a q e^B)_+, a convex function
of a sum of such exponentials with weights >= 0. It increases with each entry of the covariance of
(A, B) (Kahane 1986: along sqrt(t) Y + sqrt(1 - t) X its derivative is a sum of the differences
of these entries times expectations of a second derivative >= 0). The entries are |g|^2 <= 1,
|g - g'|^2 <= 4 and <g, g - g'> <= 2, and g = 1, g' = -1 attains all of them at once: P and Q.

A run whose steps, and Gaussian releases before them, each depend on what came before costs at most
what the product of these pairs does (Zhu, Dong and Wang 2022, Theorem 10). A release with noise
sigma at sensitivity D is the pair with q = 1 and z = 2 sigma / D. Adam, proximal terms and all else
that is computed from noisy sums alone is post-processing.

Numbers are rounded towards a larger epsilon, except for errors of the floating point in sums,
for which 1e-13 is added to delta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

from fedaux_pl.errors import check_setting

_Array = npt.NDArray[np.float64]

LEAST_DELTA = 1e-10
"""Far above the rounding errors of the composition."""

LARGEST_EPSILON = 512.0
"""More counts as infinite."""

_ROUNDING = 1e-13  # of the sums of a composition
_LEAST_MULTIPLIER = 0.1  # less is never chosen
_FINENESS = 16  # grid points within a standard deviation of the privacy loss of a step
_SMALLEST_GRID = 2**12
_LARGEST_GRID = 2**20


@dataclass(frozen=True)
class SampledGaussian:
    """Equal steps of DP-SGD.

    Attributes:
        rate: q in (0, 1], the probability with which a record is in the batch of a step.
        multiplier: z, the standard deviation of the noise relative to the norm of the clipping.
        steps: How many there are.
    """

    rate: float
    multiplier: float
    steps: int

    @classmethod
    def of_release(cls, mu: float) -> "SampledGaussian":
        """Return what costs as much as Gaussian releases that are together mu-GDP."""
        return cls(1.0, 2 / mu, 1)

    @property
    def deviation(self) -> float:
        """About the standard deviation of the privacy loss of a step."""
        return self.rate * math.sqrt(4 * math.sinh(min(self.multiplier**-2, 20)))

    def loss_tails(self, loss: _Array) -> tuple[_Array, _Array]:
        """Return P(L > loss) and Q(L > loss) of the privacy loss L of a step, for losses >= 0.

        L(x) = log((1 - q + q a u) / (1 - q + q a / u)) for u = e^(x / z^2) and a = e^(-1 / (2 z^2))
        increases with x, and u is the positive root of a quadratic equation.
        """
        rate = self.rate
        deviation = self.multiplier
        log_a = -0.5 / deviation**2
        with np.errstate(divide="ignore"):
            linear = np.log1p(-rate) + np.log(np.expm1(loss))
        constant = math.log(4) + loss + 2 * (math.log(rate) + log_a)
        root = np.logaddexp(linear, 0.5 * np.logaddexp(2 * linear, constant))
        x = (root - math.log(2 * rate) - log_a) * deviation
        shift = 1 / deviation
        common = (1 - rate) * ndtr(-x)
        return common + rate * ndtr(shift - x), common + rate * ndtr(-shift - x)

    def loss_pmf(self, grid: int, width: float) -> tuple[_Array, float]:
        """Return probabilities of losses on a circular grid, and that of an infinite loss.

        The mass of an interval of losses goes to its two ends such that its probabilities under P
        and under Q stay: a mean-preserving spread of the likelihood ratio, so that no divergence
        becomes smaller. Losses beyond the grid become infinite, those below it its lowest one.
        """
        half = grid // 2
        losses = width * np.arange(half, dtype=np.float64)
        above, above_other = self.loss_tails(losses)
        p = -np.diff(above)
        q = -np.diff(above_other)
        positive = np.clip((p - np.exp(losses[:-1]) * q) / -math.expm1(-width), 0, p)  # upper ends
        # by symmetry the losses -b to -a have the probability of a to b with P and Q exchanged
        negative = np.clip((q - np.exp(-losses[1:]) * p) / -math.expm1(-width), 0, q)
        pmf = np.zeros(grid)
        pmf[1:half] += positive
        pmf[: half - 1] += p - positive
        mirrored = np.zeros(half)
        mirrored[:-1] += negative
        mirrored[1:] += q - negative
        mirrored[-1] += above_other[-1]
        pmf[0] += mirrored[0]
        pmf[half + 1 :] += mirrored[:0:-1]
        return pmf, float(above[-1])


class _Composition:
    """The privacy loss of mechanisms together, on a grid up to ``largest``."""

    def __init__(self, mechanisms: Sequence[SampledGaussian], largest: float) -> None:
        finest = min(mechanism.deviation for mechanism in mechanisms) / _FINENESS
        power = math.ceil(math.log2(2 * largest / finest))
        grid = min(max(2**power, _SMALLEST_GRID), _LARGEST_GRID)
        width = 2 * largest / grid
        self.losses = width * np.concatenate([np.arange(grid // 2), np.arange(-(grid // 2), 0)])
        transform = np.ones(grid // 2 + 1, dtype=complex)
        slopes = np.geomspace(0.1, 100, 40) / largest
        log_moments = np.zeros_like(slopes)
        infinite = _ROUNDING
        for mechanism in mechanisms:
            pmf, beyond = mechanism.loss_pmf(grid, width)
            transform *= np.fft.rfft(pmf) ** mechanism.steps
            moments = np.array([(pmf * np.exp(slope * self.losses)).sum() for slope in slopes])
            log_moments += mechanism.steps * np.log(moments)
            infinite += mechanism.steps * beyond
        self.pmf = np.fft.irfft(transform, grid)
        # sums above the grid appear at its lower end; Chernoff's bound of their probability
        outside = float(np.exp(np.min(log_moments - slopes * self.losses.max())))
        self.infinite = infinite + outside

    def delta(self, epsilon: float) -> float:
        """Return a delta that the mechanisms attain at an epsilon."""
        is_above = self.losses > epsilon
        shares = -np.expm1(epsilon - self.losses[is_above])
        return self.infinite + float(self.pmf[is_above].clip(0) @ shares)


def sampled_gaussian_epsilon(delta: float, mechanisms: Sequence[SampledGaussian]) -> float:
    """Return an epsilon that mechanisms about the same records attain together at ``delta``.

    Examples:
        >>> once = SampledGaussian(rate=0.01, multiplier=1.0, steps=1000)
        >>> round(sampled_gaussian_epsilon(1e-5, [once]), 2)
        2.84
    """
    check_setting("delta", delta, LEAST_DELTA <= delta < 1, f"lie in [{LEAST_DELTA:g}, 1)")
    if not mechanisms:
        return 0.0
    joined: dict[SampledGaussian, int] = {}
    for mechanism in mechanisms:
        kind = replace(mechanism, steps=1)
        joined[kind] = joined.get(kind, 0) + mechanism.steps
    return _epsilon(delta, tuple(replace(kind, steps=joined[kind]) for kind in joined))


@lru_cache(maxsize=4096)
def _epsilon(delta: float, mechanisms: tuple[SampledGaussian, ...]) -> float:
    largest = 16.0
    while True:
        composition = _Composition(mechanisms, largest)
        if composition.infinite <= delta / 100:
            break
        if largest >= LARGEST_EPSILON:
            return math.inf
        largest *= 2
    if composition.delta(0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: composition.delta(epsilon) - delta, 0.0, largest)) + 1e-9


@lru_cache(maxsize=4096)
def noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, released: float = 0.0
) -> float:
    """Return z with which ``steps`` of DP-SGD at a rate are (epsilon, delta)-private.

    ``released`` is the mu of the Gaussian releases about the same records, which are part of the
    guarantee. Raises a ValueError if nothing is left for the steps.

    Examples:
        >>> round(noise_multiplier(epsilon=3.0, delta=1e-5, rate=0.01, steps=1000), 2)
        0.97
    """
    others = [SampledGaussian.of_release(released)] if released else []
    spent = sampled_gaussian_epsilon(delta, others)
    if spent >= epsilon:
        raise ValueError(
            f"the releases cost epsilon {spent:.4g} at delta {delta:g}, so that nothing of epsilon "
            f"{epsilon:g} is left for {steps} steps"
        )

    def excess(log_multiplier: float) -> float:
        steps_of = SampledGaussian(rate, math.exp(log_multiplier), steps)
        return min(sampled_gaussian_epsilon(delta, [*others, steps_of]), 1e3) - epsilon

    high = 0.0
    while excess(high) > 0:
        high += 1
    low = high - 1
    while excess(low) <= 0:
        if low < math.log(_LEAST_MULTIPLIER):
            return _LEAST_MULTIPLIER
        low -= 1
    root = float(brentq(excess, low, high, xtol=1e-4))
    while excess(root) > 0:
        root += 1e-4
    return math.exp(root + 1e-4)  # so that a ledger with the same steps stays below epsilon
