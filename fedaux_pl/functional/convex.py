"""Minimizers of strongly convex functions, in float64.

Where the gradient of a lambda-strongly convex function has norm g, the point is within g / lambda
of the minimizer. Weights have the shape (1, d).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


class Objective(Protocol):
    """A strongly convex function and its derivatives."""

    def value(self, weight: Tensor) -> float:
        """The value at a weight."""

    def gradient(self, weight: Tensor) -> Tensor:
        """The gradient at a weight, of the same shape."""

    def curvature(self, weight: Tensor) -> Any:
        """What ``hessian_product`` needs to know about a weight, computed once for it."""

    def hessian_product(self, curvature: Any, vector: Tensor) -> Tensor:
        """The Hessian times a vector."""


def minimize_convex(
    objective: Objective, start: Tensor, max_iter: int, tolerance: float
) -> tuple[Tensor, float]:
    """Return the minimizer, shape (1, d), and the norm of the gradient there.

    On a GPU: Newton steps. On the CPU: L-BFGS, then Newton steps if it stopped above the tolerance.
    L-BFGS compares values of the objective, in which a step shorter than the square root of the
    machine precision is lost to rounding; Newton steps use the gradient only.

    Args:
        objective: What is minimized.
        start: Where to begin, float64 of shape (1, d).
        max_iter: The maximum number of iterations of each solver, at least 1.
        tolerance: The norm of the gradient at which to stop, above 0.
    """
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, but is {max_iter}")
    if not tolerance > 0:
        raise ValueError(f"the tolerance must be positive, but is {tolerance}")
    if not start.is_cuda:
        start = _lbfgs(objective, start, max_iter, tolerance)
    return newton(objective, start, max_iter, tolerance)


def _lbfgs(objective: Objective, start: Tensor, max_iter: int, tolerance: float) -> Tensor:

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(point)[None]
        return objective.value(weight), objective.gradient(weight)[0].numpy()

    result = minimize(
        value_and_gradient,
        start[0].numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": tolerance, "ftol": 0.0},
    )
    return torch.from_numpy(result.x)[None]


def newton(
    objective: Objective, weight: Tensor, max_iter: int, tolerance: float
) -> tuple[Tensor, float]:
    """Take Newton steps from ``weight`` until the norm of the gradient is within the tolerance.

    A step is halved while it would lengthen the gradient: along a Newton step of a strongly
    convex function the norm of the gradient falls for every short enough step. If 40 halvings do
    not shorten it, rounding allows no further progress, and the weight is final.
    """
    gradient = objective.gradient(weight)
    norm = float(gradient.norm(dim=1))
    for _ in range(max_iter):
        if not norm > tolerance:  # NaN too
            break
        product = partial(objective.hessian_product, objective.curvature(weight))
        iterations = 2 * weight.shape[1] + 50
        step = conjugate_gradients(product, gradient, 0.1 * tolerance, iterations)
        size = 1.0
        for _ in range(40):
            candidate = weight - size * step
            candidate_gradient = objective.gradient(candidate)
            candidate_norm = float(candidate_gradient.norm(dim=1))
            if not candidate_norm > norm:
                break
            size /= 2
        else:
            break
        weight, gradient, norm = candidate, candidate_gradient, candidate_norm
    return weight, norm


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], target: Tensor, tolerance: float, max_iter: int
) -> Tensor:
    """Solve H step = target to a residual of ``tolerance`` or rounding.

    Args:
        product: H times a vector, for a positive definite H that need not be formed.
        target: Of any shape.
        tolerance: The norm of the residual at which to stop; at least 1e-6 of that of the target.
        max_iter: The maximum number of iterations.
    """
    floor = torch.finfo(target.dtype).tiny
    step = torch.zeros_like(target)
    residual, direction = target, target
    energy = residual.square().sum()
    goal = (1e-12 * energy).clamp(min=tolerance**2)
    for _ in range(max_iter):
        if bool(energy <= goal):
            break
        image = product(direction)
        length = energy / (direction * image).sum().clamp(min=floor)
        step = step + length * direction
        residual = residual - length * image
        before, energy = energy, residual.square().sum()
        direction = residual + energy / before.clamp(min=floor) * direction
    return step
