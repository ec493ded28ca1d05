"""Minimizers of strongly convex functions, in float64.

Where the gradient of a lambda-strongly convex function has norm g, the point is within g / lambda
of the minimizer. Both solvers work on weights of shape (1, d).
"""

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


def lbfgs(objective: Objective, start: Tensor, max_iter: int, tolerance: float) -> Tensor:
    """Runs scipy's L-BFGS on the CPU; shape (1, d).

    Args:
        objective: What is minimized.
        start: Where it begins, float64 of shape (1, d).
        max_iter: The maximum number of iterations.
        tolerance: The largest entry of the gradient at which it stops.
    """

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
    """Newton steps from ``weight`` until the norm of the gradient is within the tolerance.

    A step is halved while it would lengthen the gradient: along a Newton step of a strongly
    convex function the norm of the gradient falls for every short enough step. If 40 halvings do
    not shorten it, rounding allows no further progress, and the weight is final.
    """
    gradient = objective.gradient(weight)
    norm = float(gradient.norm(dim=1))
    for _ in range(max_iter):
        if norm <= tolerance:
            break
        step = _conjugate_gradients(objective, weight, gradient, 0.1 * tolerance)
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


def _conjugate_gradients(
    objective: Objective, weight: Tensor, target: Tensor, tolerance: float
) -> Tensor:
    """Solves H(w) step = target to a residual of ``tolerance`` or rounding; H is never formed."""
    curvature = objective.curvature(weight)
    floor = torch.finfo(target.dtype).tiny
    step = torch.zeros_like(target)
    residual, direction = target, target
    energy = residual.square().sum()
    goal = (1e-12 * energy).clamp(min=tolerance**2)
    for _ in range(2 * weight.shape[1] + 50):
        if bool(energy <= goal):
            break
        product = objective.hessian_product(curvature, direction)
        length = energy / (direction * product).sum().clamp(min=floor)
        step = step + length * direction
        residual = residual - length * product
        before, energy = energy, residual.square().sum()
        direction = residual + energy / before.clamp(min=floor) * direction
    return step
