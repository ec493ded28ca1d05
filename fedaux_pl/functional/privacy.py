"""Differential privacy of the scoring heads (FedAUX, section 3.5 and appendix H).

Neighbouring data sets differ in one record that is replaced, so that |D_i| is public.

The guarantee is that of real arithmetic. The noise of a release is drawn in double precision by
an ordinary generator; attacks on the floating-point representation of noise (Mironov 2012) are
not covered.
"""

import math
from functools import lru_cache
from typing import Literal

import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor

Mechanism = Literal["analytic", "classical"]


def scoring_sensitivity(regularization: float, num_samples: int, tolerance: float = 0.0) -> float:
    """Bounds how far one record can move a fitted scoring head (Theorem 1).

    With rows of norm at most 1 the exact minimiser of the lambda-strongly convex J moves by at
    most 2 / (lambda N). A solver that stops where the gradient's norm is at most ``tolerance`` is
    within tolerance / lambda of the minimiser, on either data set, which adds 2 tolerance /
    lambda.

    Args:
        regularization: lambda > 0 of the objective in which the loss is a mean over N samples.
        num_samples: N = |D_i| + |D^-|.
        tolerance: The largest gradient norm with which a fit is released; a public constant.

    Returns:
        The l2-sensitivity.
    """
    if not 0 < regularization < math.inf:
        raise ValueError(f"lambda must be positive and finite, but is {regularization}")
    if num_samples < 1:
        raise ValueError(f"the number of samples must be at least 1, but is {num_samples}")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"the tolerance must be at least 0 and finite, but is {tolerance}")
    return 2 / (regularization * num_samples) + 2 * tolerance / regularization


def gaussian_sigma(
    epsilon: float, delta: float, sensitivity: float, mechanism: Mechanism = "analytic"
) -> float:
    """Finds the standard deviation with which Gaussian noise gives (epsilon, delta)-privacy.

    ``analytic`` is the smallest that does (Balle and Wang 2018, Theorem 8): the sigma at which
    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D) = delta for
    the sensitivity D. ``classical`` is the paper's sqrt(2 ln(1.25/delta)) D / epsilon (Dwork and
    Roth 2014, Theorem A.1), larger, and proven only for epsilon <= 1.

    Args:
        epsilon: Greater than 0.
        delta: Between 0 and 1, both excluded.
        sensitivity: The l2-sensitivity D, at least 0.
        mechanism: ``analytic`` or ``classical``.

    Returns:
        sigma, in units of the released vector.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, but is {epsilon}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, but is {delta}")
    if not 0 <= sensitivity < math.inf:
        raise ValueError(f"the sensitivity must be at least 0 and finite, but is {sensitivity}")
    if mechanism == "classical":
        if epsilon > 1:
            raise ValueError(
                f"the classical Gaussian mechanism is proven for epsilon <= 1 only, but epsilon "
                f"is {epsilon}: use mechanism='analytic'"
            )
        return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if mechanism == "analytic":
        return sensitivity * _analytic_multiplier(epsilon, delta)
    raise ValueError(f"mechanism must be 'analytic' or 'classical', but is {mechanism!r}")


def gaussian_log_delta(epsilon: float, multiplier: float) -> float:
    """The natural logarithm of the smallest delta that noise of ``multiplier`` x D attains."""
    upper = log_ndtr(0.5 / multiplier - epsilon * multiplier)
    lower = log_ndtr(-0.5 / multiplier - epsilon * multiplier)
    # delta = e^upper - e^(epsilon + lower), written so that nothing under- or overflows.
    ratio = epsilon + lower - upper
    return float(upper + math.log(-math.expm1(ratio))) if ratio < 0 else -math.inf


@lru_cache
def _analytic_multiplier(epsilon: float, delta: float) -> float:
    def excess(log_multiplier: float) -> float:
        # Far out in the tail rounding can turn delta into 0: any finite stand-in below will do.
        return max(gaussian_log_delta(epsilon, math.exp(log_multiplier)), -1e300) - math.log(delta)

    low, high = -1.0, 1.0
    while excess(low) <= 0:
        low -= 1
    while excess(high) > 0:
        high += 1
    root = math.exp(float(brentq(excess, low, high, xtol=1e-13, rtol=1e-13)))
    # A root is found to within rounding; step to the private side of it.
    while gaussian_log_delta(epsilon, root) > math.log(delta):
        root *= 1 + 1e-12
    return root


def clip_rows(features: Tensor, bound: float) -> Tensor:
    """Scales every row that is longer than ``bound`` down to it and leaves the others alone.

    Args:
        features: Shape (N, d), finite.
        bound: A positive number that does not depend on private data.

    Returns:
        A tensor of the same shape whose rows have a norm of at most ``bound``, rounding included.
    """
    if not 0 < bound < math.inf:
        raise ValueError(f"the bound must be positive and finite, but is {bound}")
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"features must be floats of shape (samples, features), but are {features.dtype} of "
            f"shape {tuple(features.shape)}"
        )
    # In double precision squares of float32 features neither overflow nor lose the last digits.
    norms = features.double().norm(dim=1, keepdim=True)
    if not bool(norms.isfinite().all()):
        raise ValueError("features hold NaN or infinity: they have no norm that could be clipped")
    # What rounding may add: to the computed norm, and to the scaled row.
    of_norm = features.shape[1] * torch.finfo(torch.float64).eps
    of_row = 4 * torch.finfo(features.dtype).eps
    shrink = bound / norms * (1 - of_row - of_norm)
    too_long = norms * (1 + of_norm) > bound
    return torch.where(too_long, features * shrink, features).to(features.dtype)


def bounded_rows(features: Tensor, bound: float) -> Tensor:
    """Rows clipped to a public bound and divided by it: float64, of norm at most 1."""
    return clip_rows(features.detach().double(), bound) / bound
