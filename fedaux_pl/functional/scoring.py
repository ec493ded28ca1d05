"""Certainty scoring (FedAUX, section 3.4): the scoring head and the scores it gives.

Client i fits a logistic regression that tells its data D_i from the public negatives D^-,

    w_i = argmin_w J(w) = 1/N sum_{x in D_i and D^-} log(1 + exp(-t_x <w, h(x)>)) + lambda/2 |w|^2

with t_x = 1 on D_i, -1 on D^- and N = |D_i| + |D^-|. (The paper prints the loss as
log(1 + exp(z)); with the labels as it defines them, the sign above is the one that separates.)
The rows h(x) are used as they are given: a bound on their norm is the caller's to establish.

J is lambda-strongly convex, so a gradient of norm g puts w within g / lambda of the minimiser.
Everything is computed in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


def fit_scoring_head(
    positives: Tensor,
    negatives: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-10,
) -> tuple[Tensor, float]:
    """Fits the scoring head of one client with L-BFGS, on the CPU.

    L-BFGS compares values of J, which cannot see a step shorter than the square root of the
    machine precision; where it stops short of the tolerance, Newton steps, which look at the
    gradient alone, finish.

    Args:
        positives: h(x) on D_i, shape (|D_i|, d).
        negatives: h(x) on D^-, shape (|D^-|, d).
        regularization: lambda > 0.
        max_iter: The most iterations of L-BFGS, and of Newton steps after it.
        tolerance: The norm of the gradient of J at which the fit is finished.

    Returns:
        The weight w, float64 of shape (d,) on the CPU, and the norm of the gradient of J at it,
        which exceeds the tolerance if the iterations did not suffice.
    """
    _check_fit([positives], negatives, regularization, max_iter, tolerance)
    objective = _Objective.create([positives.cpu()], negatives.cpu(), regularization)

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(point)[None]
        return float(objective.value(weight)), objective.gradient(weight)[0].numpy()

    result = minimize(
        value_and_gradient,
        np.zeros(negatives.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": tolerance, "ftol": 0.0},
    )
    weight, gradient_norm = _newton(
        objective, torch.from_numpy(result.x)[None], max_iter, tolerance
    )
    return weight[0], float(gradient_norm[0])


def fit_scoring_heads(
    positives: Sequence[Tensor],
    negatives: Tensor,
    regularization: float,
    max_iter: int = 100,
    tolerance: float = 1e-10,
) -> tuple[Tensor, Tensor]:
    """Fits the scoring heads of K clients at once, on the device of their features.

    Newton's method, its linear systems solved by conjugate gradients: no Hessian is formed, and
    each product with it is one matrix product for all clients.

    Args:
        positives: h(x) on D_i for each client, shapes (|D_i|, d).
        negatives: h(x) on D^-, the same for all clients, shape (|D^-|, d).
        regularization: lambda > 0.
        max_iter: The most Newton steps.
        tolerance: The norm of the gradient of J at which a fit is finished.

    Returns:
        The weights, float64 of shape (K, d), and the norms of the gradients of J at them, (K,).
    """
    _check_fit(positives, negatives, regularization, max_iter, tolerance)
    objective = _Objective.create(positives, negatives, regularization)
    start = torch.zeros(
        len(positives), negatives.shape[1], dtype=torch.float64, device=negatives.device
    )
    return _newton(objective, start, max_iter, tolerance)


def certainty_scores(features: Tensor, weight: Tensor, xi: float = 1e-8) -> Tensor:
    """Computes s_i(x) = 1 / (1 + exp(-<w_i, h(x)>)) + xi.

    Args:
        features: h(x), scaled as they were for the fit, shape (N, d).
        weight: w_i of shape (d,), or those of K clients, (K, d).
        xi: Keeps the sum of the scores away from 0; at least 0.

    Returns:
        Scores of shape (N,) or (K, N).
    """
    if features.ndim != 2 or weight.ndim not in (1, 2) or weight.shape[-1] != features.shape[1]:
        raise ValueError(
            "features must be (samples, d) and weight (d,) or (clients, d), but are "
            f"{tuple(features.shape)} and {tuple(weight.shape)}"
        )
    if not xi >= 0:
        raise ValueError(f"xi must be at least 0, but is {xi}")
    dtype = torch.promote_types(features.dtype, weight.dtype)
    return (weight.to(dtype) @ features.to(dtype).T).sigmoid() + xi


def _check_fit(
    positives: Sequence[Tensor],
    negatives: Tensor,
    regularization: float,
    max_iter: int,
    tolerance: float,
) -> None:
    if not 0 < regularization < float("inf"):
        raise ValueError(f"lambda must be positive and finite, but is {regularization}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, but is {max_iter}")
    if not tolerance > 0:
        raise ValueError(f"the tolerance must be positive, but is {tolerance}")
    if not positives:
        raise ValueError("there are no clients to fit: positives is empty")
    for name, rows in [("negatives", negatives), *(("positives", rows) for rows in positives)]:
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(
                f"{name} must be (samples, d) with at least one sample, but are {tuple(rows.shape)}"
            )
        if rows.shape[1] != negatives.shape[1]:
            raise ValueError(
                f"positives have {rows.shape[1]} features and negatives {negatives.shape[1]}"
            )
        if not bool(rows.isfinite().all()):
            raise ValueError(f"{name} hold NaN or infinity")


@dataclass(frozen=True)
class _Objective:
    """J of K clients and its derivatives, all of them functions of weights (K, d)."""

    positives: Tensor  # (K, P, d), padded with rows of zeros
    negatives: Tensor  # (M, d)
    present: Tensor  # (K, P), 1 where a row is real
    counts: Tensor  # (K, 1), N of each client
    regularization: float

    @classmethod
    def create(
        cls, positives: Sequence[Tensor], negatives: Tensor, regularization: float
    ) -> "_Objective":
        rows = [features.detach().to(negatives.device, torch.float64) for features in positives]
        pad = torch.nn.utils.rnn.pad_sequence
        return cls(
            positives=pad(rows, batch_first=True),
            negatives=negatives.detach().double(),
            present=pad([torch.ones_like(features[:, 0]) for features in rows], batch_first=True),
            counts=torch.tensor([[len(features) + len(negatives)] for features in rows]).to(
                rows[0]
            ),
            regularization=regularization,
        )

    def margins(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """<w, h(x)> on the positives (K, P) and the negatives (K, M)."""
        return (self.positives @ weight[:, :, None])[:, :, 0], weight @ self.negatives.T

    def pull_back(self, positive: Tensor, negative: Tensor) -> Tensor:
        """The mean over N of rows weighted by (K, P) and (K, M): the transpose of margins."""
        pulled = (positive[:, None] @ self.positives)[:, 0] + negative @ self.negatives
        return pulled / self.counts

    def value(self, weight: Tensor) -> Tensor:
        positive, negative = self.margins(weight)
        softplus = torch.nn.functional.softplus
        loss = (softplus(-positive) * self.present).sum(1) + softplus(negative).sum(1)
        penalty = 0.5 * self.regularization * weight.square().sum(1)
        return loss / self.counts[:, 0] + penalty

    def gradient(self, weight: Tensor) -> Tensor:
        positive, negative = self.margins(weight)
        pulled = self.pull_back(-(-positive).sigmoid() * self.present, negative.sigmoid())
        return pulled + self.regularization * weight

    def curvature(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The second derivative of the loss at every row."""
        positive, negative = (margin.sigmoid() for margin in self.margins(weight))
        return positive * (1 - positive) * self.present, negative * (1 - negative)

    def hessian_product(self, curvature: tuple[Tensor, Tensor], vector: Tensor) -> Tensor:
        positive, negative = self.margins(vector)
        pulled = self.pull_back(curvature[0] * positive, curvature[1] * negative)
        return pulled + self.regularization * vector


def _newton(
    objective: _Objective, weight: Tensor, max_iter: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Newton steps from ``weight`` until every gradient is within the tolerance.

    A step is halved while it would lengthen the gradient: along a Newton step of a strongly
    convex function the gradient's norm falls for every short enough step. A client for which no
    step shortens it any more has reached what rounding allows and keeps its weight.
    """
    gradient = objective.gradient(weight)
    norm = gradient.norm(dim=1)
    moving = torch.ones_like(norm, dtype=torch.bool)
    for _ in range(max_iter):
        moving = moving & (norm > tolerance)
        if not bool(moving.any()):
            break
        step = _conjugate_gradients(objective, weight, gradient, 0.1 * tolerance)
        size = moving.to(weight)
        for halvings in range(41):
            candidate = weight - size[:, None] * step
            gradient_there = objective.gradient(candidate)
            worse = gradient_there.norm(dim=1) > norm
            if not bool(worse.any()):
                break
            moving = moving & ~(worse & (halvings == 39))
            size = torch.where(worse, size / 2, size) * moving
        weight, gradient, norm = candidate, gradient_there, gradient_there.norm(dim=1)
    return weight, norm


def _conjugate_gradients(
    objective: _Objective, weight: Tensor, target: Tensor, tolerance: float
) -> Tensor:
    """Solves H(w) step = target for every client, to a residual of ``tolerance`` or rounding."""
    curvature = objective.curvature(weight)
    floor = torch.finfo(target.dtype).tiny
    step = torch.zeros_like(target)
    residual, direction = target, target
    energy = residual.square().sum(1, keepdim=True)
    goal = (1e-12 * energy).clamp(min=tolerance**2)
    for _ in range(2 * weight.shape[1] + 50):
        if bool((energy <= goal).all()):
            break
        product = objective.hessian_product(curvature, direction)
        length = energy / (direction * product).sum(1, keepdim=True).clamp(min=floor)
        step = step + length * direction
        residual = residual - length * product
        before, energy = energy, residual.square().sum(1, keepdim=True)
        direction = residual + energy / before.clamp(min=floor) * direction
    return step
