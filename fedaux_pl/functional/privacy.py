"""Differential privacy of a release (FedAUX, section 3.5 and appendix H).

Neighboring data sets differ in one record that is replaced: |D_i| is public and not protected.

The guarantee is that of real arithmetic; releases are rounded to a grid, so that their low-order
bits tell nothing (Mironov 2012). The analytic sigma is enlarged by more than its rounding error for
epsilon >= 1e-5 and delta >= 1e-100, as a test with 60 digits shows, and smaller ones are refused.
"""

import math
from functools import lru_cache
from typing import Literal, get_args

import torch
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr
from torch import Tensor

from fedaux_pl.errors import check_setting

Mechanism = Literal["analytic", "classical"]

MIN_EPSILON = 1e-5
MIN_DELTA = 1e-100
_MARGIN = 1 + 1e-9  # more than the rounding errors of the analytic mechanism
_LARGEST_MULTIPLIER = 4e6  # beyond it rounding errors of delta exceed the margin for them


def scoring_sensitivity(regularization: float, num_samples: int, tolerance: float = 0.0) -> float:
    """Bound the l2-distance by which replacing one record moves a scoring head (Theorem 1).

    For J of ``fit_scoring_head``, rows of norm at most 1 and N = |D_i| + |D^-| it is
    ``regression_sensitivity`` with G = 1: the gradient of a loss is -row or row times a number in
    (0, 1) (Chaudhuri et al. 2011).

    Examples:
        >>> scoring_sensitivity(regularization=0.1, num_samples=1000)
        0.02
    """
    return regression_sensitivity(1.0, regularization, num_samples, tolerance)


def softmax_sensitivity(regularization: float, num_samples: int, tolerance: float = 0.0) -> float:
    """Bound the l2-distance by which replacing one record moves a classification head.

    For J of ``fit_softmax_head``, n rows of norm at most 1 and any labels it is
    ``regression_sensitivity`` with G = sqrt(2): the gradient of a loss is (p - e_y) x^T, whose norm
    is |p - e_y| |x|. With q = 1 - p_y the other entries of p are non-negative and sum to q, so
    |p - e_y|^2 <= q^2 + q^2 <= 2.

    Examples:
        >>> round(softmax_sensitivity(regularization=0.1, num_samples=1000), 5)
        0.02828
    """
    return regression_sensitivity(math.sqrt(2), regularization, num_samples, tolerance)


def regression_sensitivity(
    gradient: float,
    regularization: float,
    num_samples: int,
    tolerance: float,
) -> float:
    """Return 2 G / (lambda N) + 2 tolerance / lambda, if the loss of a record has gradients <= G.

    Proof: J is the mean of N convex losses plus (lambda/2) |w|^2. Let w and w' minimize J and J' on
    neighboring data sets. J is lambda-strongly convex, so lambda |w - w'| <= |grad J(w')|. At w'
    the gradient of J' is 0, and the gradients of J and J' differ in one loss only, by at most
    2 G / N. By the same convexity a weight at which the gradient of J has a norm of at most
    ``tolerance``, a public constant, is within tolerance / lambda of the minimizer, on either data
    set.
    """
    check_setting("lambda", regularization, 0 < regularization < math.inf, "be positive and finite")
    check_setting("the tolerance", tolerance, 0 <= tolerance < math.inf, "be at least 0 and finite")
    check_setting("the number of samples", num_samples, num_samples >= 1, "be at least 1")
    return 2 * gradient / (regularization * num_samples) + 2 * tolerance / regularization


def gaussian_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float,
    mechanism: Mechanism = "analytic",
) -> float:
    """Find the standard deviation with which Gaussian noise gives (epsilon, delta)-privacy.

    ``analytic`` is the smallest one (Balle and Wang 2018, Theorem 8): the sigma at which
    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D) = delta for
    the sensitivity D. ``classical`` is the paper's sqrt(2 ln(1.25/delta)) D / epsilon, which is
    larger. It is proven only for epsilon < 1 (Dwork and Roth 2014, Theorem A.1) and, because delta
    is continuous in epsilon and sigma, for epsilon = 1.

    Examples:
        >>> round(gaussian_sigma(epsilon=0.1, delta=1e-5, sensitivity=1.0), 2)
        30.75
    """
    # the noise was verified for epsilon and delta down to their least values
    expected = f"be positive and finite, at least {MIN_EPSILON:g}"
    check_setting("epsilon", epsilon, MIN_EPSILON <= epsilon < math.inf, expected)
    expected = f"lie strictly between 0 and 1, and be at least {MIN_DELTA:g}"
    check_setting("delta", delta, MIN_DELTA <= delta < 1, expected)
    check_setting("sensitivity", sensitivity, 0 <= sensitivity < math.inf, "be finite, at least 0")
    is_known = mechanism in get_args(Mechanism)
    check_setting("mechanism", mechanism, is_known, "be analytic or classical")
    if mechanism == "analytic":
        return sensitivity * _analytic_multiplier(epsilon, delta)
    expected = "be at most 1 with the classical mechanism (use mechanism='analytic')"
    check_setting("epsilon", epsilon, epsilon <= 1, expected)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_log_delta(epsilon: float, multiplier: float) -> float:
    """Return log(delta) for the smallest delta that noise of ``multiplier`` x D attains."""
    near = epsilon * multiplier - 0.5 / multiplier
    far = epsilon * multiplier + 0.5 / multiplier
    # delta = Phi(-near) - e^epsilon Phi(-far), whose terms are almost equal for large multipliers.
    # Since far^2 - near^2 = 2 epsilon, their quotient is that of erfcx, in which e^epsilon cancels
    # exactly; erfcx overflows far below 0, where the terms differ enough for plain logarithms.
    upper = float(log_ndtr(-near))
    if near > -1:
        quotient = float(erfcx(far / math.sqrt(2)) / erfcx(near / math.sqrt(2)))
    else:
        quotient = math.exp(epsilon + float(log_ndtr(-far)) - upper)
    # Far out in the tail delta can round to 0: return a finite logarithm, which brentq needs.
    if quotient < 1:
        return max(upper + math.log1p(-quotient), -1e300)
    return -1e300


@lru_cache
def _analytic_multiplier(epsilon: float, delta: float) -> float:
    def excess(log_multiplier: float) -> float:
        return gaussian_log_delta(epsilon, math.exp(log_multiplier)) - math.log(delta)

    low = -1.0
    high = 1.0
    while excess(low) <= 0:
        low -= 1
    while excess(high) > 0:
        high += 1
    root = math.exp(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-13)))
    return root * _MARGIN


def gaussian_epsilon(delta: float, multiplier: float) -> float:
    """Find the smallest epsilon >= 0 that noise of ``multiplier`` x D attains at ``delta``.

    The inverse of ``gaussian_sigma`` with the analytic mechanism, rounded up. Multipliers above
    4e6, more than any budget needs, count as 4e6. From delta = 1 on nothing is guaranteed.

    Examples:
        >>> round(gaussian_epsilon(1e-5, gaussian_sigma(0.1, 1e-5, sensitivity=1.0)), 6)
        0.1
    """
    check_setting("delta", delta, delta >= 1e-300, "be at least 1e-300")
    check_setting("the multiplier", multiplier, 0 < multiplier < math.inf, "be positive and finite")
    multiplier = min(multiplier, _LARGEST_MULTIPLIER)  # less noise: a larger epsilon, still true
    # 1e-14 (1 + multiplier) is more than the relative rounding error of delta
    goal = math.log(delta) - 1e-14 * (1 + multiplier)

    def excess(epsilon: float) -> float:
        return gaussian_log_delta(epsilon, multiplier) - goal

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    root = float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-13))
    return root * _MARGIN


def clip_rows(features: Tensor, bound: float) -> Tensor:
    """Scale every row that is longer than ``bound`` down to it; the others are unchanged.

    The norms of the returned rows are at most ``bound``, rounding included. It must not depend on
    private data, and be at least 1e-31 for float32 and 1e-146 for float64.

    Examples:
        >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), bound=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    got = features.dtype, tuple(features.shape)
    is_allowed = features.ndim == 2 and features.is_floating_point()
    check_setting("features", got, is_allowed, "be floats of shape (N, d)")
    dtype = torch.finfo(features.dtype)
    double = torch.finfo(torch.float64)
    # the squares of a row of this norm must not underflow: it would look short
    least = max(dtype.tiny / dtype.eps, math.sqrt(double.tiny / double.eps))
    expected = f"be finite and at least {least:.3g} for {dtype.dtype} (rounding lengthens rows)"
    check_setting("the bound", bound, least <= bound < math.inf, expected)
    # In double precision the squares of float32 features neither overflow nor underflow.
    norms = features.double().norm(dim=1, keepdim=True)
    if not bool(norms.isfinite().all()):
        raise ValueError("features hold NaN or infinity: their norm cannot be clipped")
    # The largest relative rounding errors of the computed norm and of the scaled row.
    norm_error = features.shape[1] * double.eps
    row_error = 4 * dtype.eps
    scale = bound / norms * (1 - row_error - norm_error)
    too_long = norms * (1 + norm_error) > bound
    return torch.where(too_long, features * scale, features).to(features.dtype)


def bounded_rows(features: Tensor, bound: float) -> Tensor:
    """Clip rows to a public bound and divide by it: float64 rows of norm at most 1.

    Examples:
        >>> bounded_rows(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), bound=2.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.5000]], dtype=torch.float64)
    """
    return clip_rows(features.detach().double(), bound) / bound
