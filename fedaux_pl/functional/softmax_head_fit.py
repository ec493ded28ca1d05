"""The classification head of a client: multinomial logistic regression (FedAUXfdp).

Client i fits, to rows x of norm at most 1 with labels y,

    W_i = argmin_W J(W) = 1/n sum_(x, y) -log softmax(W x)_y + lambda/2 |W|^2

over its n records. There is no intercept: append a constant to the rows and count it in their
norm. Everything is computed in float64.
"""

from dataclasses import dataclass

from torch import Tensor

from fedaux_pl.functional.convex import minimize_convex


def fit_softmax_head(
    rows: Tensor,
    labels: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-8,
) -> tuple[Tensor, float]:
    """Fit the head of one client by ``minimize_convex``, on the device of its rows.

    Args:
        rows: x, shape (n, d).
        labels: One-hot labels, shape (n, C).
        regularization: lambda > 0.
        max_iter: The maximum number of iterations of each solver.
        tolerance: The norm of the gradient of J at which the fit is finished.

    Returns:
        W, float64 of shape (C, d) on the CPU, and the norm of the gradient of J at W, which
        exceeds the tolerance if ``max_iter`` or the tolerance was too small.

    Examples:
        >>> import torch
        >>> weight, gradient_norm = fit_softmax_head(torch.eye(2), torch.eye(2), regularization=0.1)
        >>> [round(entry, 3) for entry in weight.flatten().tolist()], gradient_norm <= 1e-8
        ([0.817, -0.817, -0.817, 0.817], True)
    """
    rows = rows.detach().double()
    objective = _Objective(rows, labels.to(rows), regularization)
    start = rows.new_zeros(1, labels.shape[1] * rows.shape[1])
    weight, gradient_norm = minimize_convex(objective, start, max_iter, tolerance)
    return objective.matrix(weight).cpu(), gradient_norm


@dataclass(frozen=True)
class _Objective:
    """J and its derivatives as functions of a weight of shape (1, C d)."""

    rows: Tensor  # (n, d)
    labels: Tensor  # (n, C), one-hot
    regularization: float

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.view(self.labels.shape[1], self.rows.shape[1])

    def _mean(self, errors: Tensor, weight: Tensor) -> Tensor:
        """1/n sum errors x^T + lambda W, flat."""
        return ((errors.T @ self.rows) / len(self.rows)).view(1, -1) + self.regularization * weight

    def value(self, weight: Tensor) -> float:
        logits = self.rows @ self.matrix(weight).T
        loss = (logits.logsumexp(dim=1) - (logits * self.labels).sum(dim=1)).mean()
        return float(loss + 0.5 * self.regularization * weight.square().sum())

    def gradient(self, weight: Tensor) -> Tensor:
        return self._mean(self.curvature(weight) - self.labels, weight)

    def curvature(self, weight: Tensor) -> Tensor:
        """p(x), which determines the Hessian (diag(p) - p p^T) of each record's loss."""
        return (self.rows @ self.matrix(weight).T).softmax(dim=1)

    def hessian_product(self, curvature: Tensor, vector: Tensor) -> Tensor:
        change = self.rows @ self.matrix(vector).T
        centered = change - (curvature * change).sum(dim=1, keepdim=True)
        return self._mean(curvature * centered, vector)
