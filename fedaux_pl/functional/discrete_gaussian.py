"""Discrete Gaussian noise, exact in integers, and how much of it a sum over clients needs.

N_Z(0, sigma^2) has P(y) proportional to exp(-y^2 / (2 sigma^2)) on the integers.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from hashlib import shake_256

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.errors import check_setting

LARGEST_SIGMA = 2**55  # above it draws could leave 64 bits
_ERROR = 2.0**-40  # of a uniform number and of exp() in float64: more than 1000 units of rounding
_LEVELS = 44  # e^-44 is below _ERROR
_BLOCK = 2**18


def discrete_gaussian(count: int, sigma: int, read: Callable[[int], bytes]) -> Tensor:
    """Draw int64 numbers from N_Z(0, sigma^2), exactly, as a function of the bytes read.

    Canonne, Kamath and Steinke (2020), with their rejections merged into one: propose V with
    P(V >= j) = e^-j, U uniform in {0, ..., sigma - 1} and a sign, without -0; accept y = +-(U +
    sigma V) with probability e^-g,

        g = ((U/sigma)^2 + 2 V U/sigma + (V - 1)^2) / 2 = y^2 / (2 sigma^2) - V + 1/2 >= 0,

    so that y is proposed and accepted with a probability proportional to e^-V e^-g, hence to
    exp(-y^2 / (2 sigma^2)). About 0.48 of the proposals are accepted.

    Both decisions compare a uniform number of 63 bits with e^-j or e^-g in float64. They count
    only if the two differ by more than 2^-40, where IEEE arithmetic is off by less than 2^-49 and
    ``exp`` may be off by 1000 units in the last place. The others (about one in 10^10) are made
    with integers and decimals, the uniform number being extended by as many bits as it needs. The
    result thus depends on no rounding, and neither does the order of bytes: the further bits
    come from SHAKE-256 of a seed, read first, and of the number of the decision. The time that it
    takes depends on the draws, as that of every rejection sampler.

    ``read`` returns as many random bytes as it is asked for: ``os.urandom``, or a seeded stream.

    Examples:
        >>> import random
        >>> discrete_gaussian(4, sigma=1000, read=random.Random(0).randbytes)
        tensor([-1066,   641,  -220,   747])
    """
    expected = "be an integer from 1 to 2^55 (noise beyond leaves 64 bits)"
    check_setting("sigma", sigma, 1 <= sigma <= LARGEST_SIGMA, expected)
    seed = read(32)
    start = 0
    draws = np.empty(0, dtype=np.int64)
    while len(draws) < count:
        size = min(9 * (count - len(draws)) // 4 + 64, _BLOCK)
        accepted = _accepted(read(24 * size), sigma, seed, start)
        draws = np.concatenate([draws, accepted])
        start += size
    return torch.from_numpy(draws[:count])


def _accepted(random: bytes, sigma: int, seed: bytes, start: int) -> np.ndarray:
    """The draws of a block of proposals, which are numbered from ``start``."""
    first, second, third = np.frombuffer(random, dtype="<u8").reshape(3, -1).astype(np.uint64)
    whole = 2**64 // sigma * sigma  # U is uniform below it: beyond it a proposal is dropped
    fits = np.flatnonzero(first <= np.uint64(whole - 1))
    u = (first[fits] % np.uint64(sigma)).astype(np.int64)
    negative = (second[fits] & np.uint64(1)).astype(bool)
    levels = second[fits] >> np.uint64(1)
    accepts = third[fits] >> np.uint64(1)

    uniform = levels * 2.0**-63
    thresholds = np.exp(-np.arange(_LEVELS, 0.0, -1.0))
    v = _LEVELS - np.searchsorted(thresholds, uniform + _ERROR)
    v_of_lower = _LEVELS - np.searchsorted(thresholds, uniform - _ERROR)
    for i in np.flatnonzero(v != v_of_lower):
        number = 2 * (start + int(fits[i]))
        v[i] = 0
        while _is_below(int(levels[i]), int(v[i]) + 1, 1, seed, number):
            v[i] += 1

    x = u / float(sigma)
    g = (x * x + 2 * v * x + (v - 1) ** 2) / 2
    gap = np.exp(-g) - accepts * 2.0**-63
    accept = gap > 0
    for i in np.flatnonzero(np.abs(gap) <= _ERROR):
        a = int(u[i])
        level = int(v[i])
        numerator = a * a + 2 * level * a * sigma + (level - 1) ** 2 * sigma**2
        number = 2 * (start + int(fits[i])) + 1
        accept[i] = _is_below(int(accepts[i]), numerator, 2 * sigma**2, seed, number)
    y = u + v * sigma
    accept &= ~(negative & (y == 0))
    draws: np.ndarray = np.where(negative, -y, y)[accept]
    return draws


def _is_below(uniform: int, numerator: int, denominator: int, seed: bytes, number: int) -> bool:
    """Whether a uniform number with these first 63 bits is below exp(-numerator / denominator)."""
    extension = 8
    while True:
        random = shake_256(seed + number.to_bytes(8, "little")).digest(extension)
        bits = 63 + 8 * extension
        low = (uniform << 8 * extension) + int.from_bytes(random, "big")
        context = Context(prec=bits // 3 + 30)  # decimal rounds exp correctly
        power = context.exp(context.divide(Decimal(-numerator), Decimal(denominator)))
        limit = int(context.multiply(power, Decimal(2**bits)))  # off by less than 1
        if low + 1 <= limit - 1:
            return True
        if low >= limit + 2:
            return False
        extension *= 2


def noise_of_sum(multiplier: float, squared_sensitivity: int, honest: int) -> tuple[int, int]:
    """Return the variance v of a sum and sigma of a client, as private as Gaussian noise of m D.

    If ``honest`` clients draw N_Z(0, sigma^2) for every coordinate, their sum has at least the
    variance v = ceil((m D)^2) + 9, and the release of integers with sensitivity D is as
    private as N(0, (m D)^2), up to a factor e^(+-eta) of probabilities, eta < 1e-40.

    Write theta_s(x) = sum_y exp(-(y - x)^2 / (2 s^2)) over integers y. By Poisson summation it is
    s sqrt(2 pi) (1 + 2 sum_{j >= 1} exp(-2 pi^2 s^2 j^2) cos(2 pi j x)), so its logarithm differs
    from that of s sqrt(2 pi) by at most L(s^2) = 2 r / (1 - 2 r), r = sum exp(-2 pi^2 s^2 j^2).

    Lemma 1 (Kairouz, Liu, Steinke 2021): the sum of h draws of N_Z(0, s^2) has log probabilities
    within eta_1 = sum_{k < h} 2 L(s^2 k / (k + 1)) of N_Z(0, h s^2). Proof: by completing the
    square, N_Z(0, k s^2) + N_Z(0, s^2) at x is proportional to exp(-x^2 / (2 (k + 1) s^2))
    theta_t(x k / (k + 1)), t^2 = s^2 k / (k + 1). The second factor is constant up to
    e^(+-L(t^2)), as is its mean, by which the whole is normalized. Add up over k.

    Lemma 2: N_Z(v, s^2) with an integer v has log probabilities within eta_2 = L(9) + L(s^2) of a
    post-processing of v + N(0, s^2 - 9): from that real number x draw the integer y with a
    probability proportional to exp(-(y - x)^2 / 18). Proof: were the normalization theta_3(x)
    constant, integrating over x would give exp(-(y - v)^2 / (2 s^2)) / (s sqrt(2 pi)) by the
    convolution of Gaussians; it is, up to e^(+-L(9)), and theta_s(v) is s sqrt(2 pi) up to
    e^(+-L(s^2)).

    So, for d coordinates and eta = d (eta_1 + eta_2), the release is (epsilon + 2 eta, e^eta
    delta)-DP if N(0, (m D)^2) is (epsilon, delta)-DP; more variance only adds privacy. Here
    sigma >= 4 is required. Then eta <= d h 2 L(8) + d (L(9) + L(16)) < d h 1e-67, below 1e-40
    for all d h < 1e27 and far below the margin of ``gaussian_sigma``, 1e-9.

    ``multiplier`` is m, as ``gaussian_sigma`` with sensitivity 1 returns it; h = ``honest`` clients
    certainly add their noise and do not show it.

    Examples:
        >>> noise_of_sum(3.5, squared_sensitivity=10_000, honest=4)
        (122509, 176)
    """
    check_setting("multiplier", multiplier, 0 < multiplier < math.inf, "be positive and finite")
    check_setting("D^2", squared_sensitivity, squared_sensitivity >= 1, "be at least 1")
    check_setting("the number of honest clients", honest, honest >= 1, "be at least 1")
    variance = math.ceil(Fraction(multiplier) ** 2 * squared_sensitivity) + 9
    sigma = math.isqrt(-(-variance // honest)) + 1
    expected = "lie in 4 ... 2^55 (encode with more or fewer steps, or change epsilon)"
    check_setting("the noise of a client in steps", sigma, 4 <= sigma <= LARGEST_SIGMA, expected)
    return variance, sigma
