"""Regressions: scoring heads (FedAUX), classification heads (FedAUXfdp), and heads of students.

The caller bounds the norms of a client's rows, which are finite; ``regularization`` is lambda > 0.
Everything is computed in float64 on the rows' device. A fit returns its weight on the CPU and the
norm g of the gradient of J there, which exceeds ``tolerance`` if that or ``max_iter`` was too
small: J is lambda-strongly convex, so the weight is within g / lambda of the minimizer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from fedaux_pl.errors import check_setting

_LOWEST = 1e-6  # probabilities below count as this: their logarithms would decide the fit
_SMALLEST = 1e-12  # for features that are constant
_RIDGE = 1e-3  # of the mean variance of a feature


def fit_scoring_head(
    positives: Tensor,
    negatives: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-10,
) -> tuple[Tensor, float]:
    """Fit a logistic regression that separates D_i from the public negatives D^- (section 3.4).

        argmin_w J(w) = 1/N sum_{x in D_i and D^-} log(1 + exp(-t_x <w, h(x)>)) + lambda/2 |w|^2

    with t_x = 1 on D_i, -1 on D^- and N = |D_i| + |D^-|. (The paper prints the loss as
    log(1 + exp(z)); with the labels as it defines them, the sign above is the one that separates.)
    ``positives`` and ``negatives`` are h(x) on D_i and D^-. Returns w, shape (d,).

    Examples:
        >>> positives, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> weight, gradient_norm = fit_scoring_head(positives, negatives, regularization=0.1)
        >>> [round(w, 4) for w in weight.tolist()], gradient_norm <= 1e-10
        ([1.1775, -1.1775], True)
    """
    negatives = negatives.detach().double()
    # A batch dimension: bmm rounds small products differently from mm, and another rounding would
    # change the heads of earlier runs.
    rows = positives.detach().to(negatives)[None]
    count = negatives.new_tensor(float(len(positives) + len(negatives)))
    objective = _ScoringObjective(rows, negatives, count, regularization)
    start = torch.zeros_like(negatives[:1])
    weight, gradient_norm = minimize_convex(objective, start, max_iter, tolerance)
    return weight[0].cpu(), gradient_norm


@dataclass(frozen=True)
class _ScoringObjective:
    """J of ``fit_scoring_head`` and its derivatives as functions of a weight of shape (1, d)."""

    positives: Tensor  # (1, P, d)
    negatives: Tensor  # (M, d)
    count: Tensor  # N = P + M
    regularization: float

    def margins(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """<w, h(x)> on the positives (1, P) and on the negatives (1, M)."""
        positive = (self.positives @ weight[:, :, None])[:, :, 0]
        return positive, weight @ self.negatives.T

    def _mean(self, positive: Tensor, negative: Tensor, weight: Tensor) -> Tensor:
        """1/N times the sum of all rows, weighted by (1, P) and (1, M), + lambda w."""
        total = (positive[:, None] @ self.positives)[:, 0] + negative @ self.negatives
        return total / self.count + self.regularization * weight

    def value(self, weight: Tensor) -> float:
        positive, negative = self.margins(weight)
        loss = softplus(-positive).sum() + softplus(negative).sum()
        return float(loss / self.count + 0.5 * self.regularization * weight.square().sum())

    def gradient(self, weight: Tensor) -> Tensor:
        positive, negative = self.margins(weight)
        return self._mean(-(-positive).sigmoid(), negative.sigmoid(), weight)

    def hessian(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """The Hessian at a weight times a vector."""
        probabilities = [margin.sigmoid() for margin in self.margins(weight)]
        curvatures = [p * (1 - p) for p in probabilities]

        def product(vector: Tensor) -> Tensor:
            positive, negative = self.margins(vector)
            return self._mean(curvatures[0] * positive, curvatures[1] * negative, vector)

        return product


def fit_softmax_head(
    rows: Tensor,
    labels: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-8,
) -> tuple[Tensor, float]:
    """Fit a multinomial logistic regression to the n records of a client.

        argmin_W J(W) = 1/n sum_(x, y) -log softmax(W x)_y + lambda/2 |W|^2

    There is no intercept: append a constant to the rows (n, d) and count it in their norm. The
    labels, shape (n, C), are one-hot. Returns W, shape (C, d).

    Examples:
        >>> weight, gradient_norm = fit_softmax_head(torch.eye(2), torch.eye(2), regularization=0.1)
        >>> [round(entry, 3) for entry in weight.flatten().tolist()], gradient_norm <= 1e-8
        ([0.817, -0.817, -0.817, 0.817], True)
    """
    rows = rows.detach().double()
    objective = _SoftmaxObjective(rows, labels.to(rows), regularization)
    start = rows.new_zeros(1, labels.shape[1] * rows.shape[1])
    weight, gradient_norm = minimize_convex(objective, start, max_iter, tolerance)
    return objective.matrix(weight).cpu(), gradient_norm


@dataclass(frozen=True)
class _SoftmaxObjective:
    """J of ``fit_softmax_head`` and its derivatives as functions of a weight of shape (1, C d)."""

    rows: Tensor  # (n, d)
    labels: Tensor  # (n, C), one-hot
    regularization: float

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.view(self.labels.shape[1], self.rows.shape[1])

    def _mean(self, errors: Tensor, weight: Tensor) -> Tensor:
        """1/n sum errors x^T + lambda W, flat."""
        mean = (errors.T @ self.rows) / len(self.rows)
        return mean.view(1, -1) + self.regularization * weight

    def value(self, weight: Tensor) -> float:
        logits = self.rows @ self.matrix(weight).T
        losses = logits.logsumexp(dim=1) - (logits * self.labels).sum(dim=1)
        return float(losses.mean() + 0.5 * self.regularization * weight.square().sum())

    def gradient(self, weight: Tensor) -> Tensor:
        return self._mean(self.probabilities(weight) - self.labels, weight)

    def probabilities(self, weight: Tensor) -> Tensor:
        return (self.rows @ self.matrix(weight).T).softmax(dim=1)

    def hessian(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """The Hessian at a weight, diag(p) - p p^T for each record's logits, times a vector."""
        p = self.probabilities(weight)

        def product(vector: Tensor) -> Tensor:
            change = self.rows @ self.matrix(vector).T
            mean = (p * change).sum(dim=1, keepdim=True)
            return self._mean(p * (change - mean), vector)

        return product


_Objective = _ScoringObjective | _SoftmaxObjective


def fit_linear_head(features: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Fit g(h) = W h + b to the logarithms of probabilities (N, C), by ridge regression.

    Softmax ignores a constant added to all logits of a sample, so their mean is subtracted first.
    ``features`` are h(x), shape (N, d). Returns W, shape (C, d), and b, shape (C,), in float64.

    Examples:
        >>> features = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> weight, bias = fit_linear_head(features, (features * 2).softmax(dim=1))
        >>> bool((weight - 2 * (torch.eye(3) - 1 / 3)).abs().max() < 0.01)
        True
    """
    logits = probabilities.double().clamp(min=_LOWEST).log()
    logits = logits - logits.mean(dim=1, keepdim=True)
    level = logits.mean(dim=0)
    x = features.double()
    center = x.mean(dim=0)
    x = x - center
    gram = x.T @ x
    ridge = _RIDGE * gram.diagonal().mean().clamp(min=_SMALLEST)
    gram = gram + ridge * torch.eye(len(gram), dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(gram, x.T @ (logits - level)).T
    return weight, level - weight @ center


def minimize_convex(
    objective: _Objective,
    start: Tensor,
    max_iter: int,
    tolerance: float,
) -> tuple[Tensor, float]:
    """Return the minimizer, shape (1, d), and the norm of the gradient there.

    On a GPU: Newton steps. On the CPU: L-BFGS, then Newton steps if it stopped above the tolerance.
    L-BFGS compares values of the objective, in which a step shorter than the square root of the
    machine precision is lost to rounding; Newton steps use the gradient only. Each solver takes at
    most ``max_iter`` iterations and stops where the norm of the gradient is ``tolerance``.
    """
    check_setting("max_iter", max_iter, max_iter >= 1, "be at least 1")
    check_setting("tolerance", tolerance, tolerance > 0, "be above 0")

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(point)[None]
        return objective.value(weight), objective.gradient(weight)[0].numpy()

    if not start.is_cuda:
        result = minimize(
            value_and_gradient,
            start[0].numpy(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": tolerance, "ftol": 0.0},
        )
        start = torch.from_numpy(result.x)[None]
    return newton(objective, start, max_iter, tolerance)


def newton(
    objective: _Objective,
    weight: Tensor,
    max_iter: int,
    tolerance: float,
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
        iterations = 2 * weight.shape[1] + 50
        step = conjugate_gradients(objective.hessian(weight), gradient, 0.1 * tolerance, iterations)
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
        weight = candidate
        gradient = candidate_gradient
        norm = candidate_norm
    return weight, norm


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    target: Tensor,
    tolerance: float,
    max_iter: int,
) -> Tensor:
    """Solve H step = target for a positive definite H, of which ``product`` is H times a vector.

    Stops where the norm of the residual is ``tolerance``, or 1e-6 of that of the target.
    """
    floor = torch.finfo(target.dtype).tiny
    step = torch.zeros_like(target)
    residual = target
    direction = target
    energy = target.square().sum()
    goal = (1e-12 * energy).clamp(min=tolerance**2)
    for _ in range(max_iter):
        if bool(energy <= goal):
            break
        image = product(direction)
        length = energy / (direction * image).sum().clamp(min=floor)
        step = step + length * direction
        residual = residual - length * image
        before = energy
        energy = residual.square().sum()
        direction = residual + energy / before.clamp(min=floor) * direction
    return step
