"""Certainty scoring (FedAUX, section 3.4): the fit of a scoring head.

Client i fits a logistic regression that separates its data D_i from the public negatives D^-,

    w_i = argmin_w J(w) = 1/N sum_{x in D_i and D^-} log(1 + exp(-t_x <w, h(x)>)) + lambda/2 |w|^2

with t_x = 1 on D_i, -1 on D^- and N = |D_i| + |D^-|. (The paper prints the loss as
log(1 + exp(z)); with the labels as it defines them, the sign above is the one that separates.)
The caller bounds the norms of the rows h(x), which are finite. Everything is computed in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedaux_pl.functional.convex import minimize_convex


def fit_scoring_head(
    positives: Tensor,
    negatives: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-10,
) -> tuple[Tensor, float]:
    """Fit the scoring head of one client by ``minimize_convex``, on the device of its features.

    Args:
        positives: h(x) on D_i, shape (|D_i|, d).
        negatives: h(x) on D^-, shape (|D^-|, d).
        regularization: lambda > 0.
        max_iter: The maximum number of iterations of each solver.
        tolerance: The norm of the gradient of J at which the fit is finished.

    Returns:
        The weight w, float64 of shape (d,) on the CPU, and the norm of the gradient of J at w,
        which exceeds the tolerance if ``max_iter`` or the tolerance was too small.

    Examples:
        >>> positives, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> weight, gradient_norm = fit_scoring_head(positives, negatives, regularization=0.1)
        >>> [round(w, 4) for w in weight.tolist()], gradient_norm <= 1e-10
        ([1.1775, -1.1775], True)
    """
    objective = _Objective.create(positives, negatives, regularization)
    start = torch.zeros_like(objective.negatives[:1])
    weight, gradient_norm = minimize_convex(objective, start, max_iter, tolerance)
    return weight[0].cpu(), gradient_norm


@dataclass(frozen=True)
class _Objective:
    """J and its derivatives as functions of a weight of shape (1, d).

    The positives keep a batch dimension: bmm rounds small products differently from mm, and
    another rounding would change the heads of earlier runs.
    """

    positives: Tensor  # (1, P, d)
    negatives: Tensor  # (M, d)
    count: Tensor  # N = P + M
    regularization: float

    @classmethod
    def create(cls, positives: Tensor, negatives: Tensor, regularization: float) -> "_Objective":
        negatives = negatives.detach().double()
        count = negatives.new_tensor(float(len(positives) + len(negatives)))
        return cls(positives.detach().to(negatives)[None], negatives, count, regularization)

    def margins(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """<w, h(x)> on the positives (1, P) and on the negatives (1, M)."""
        return (self.positives @ weight[:, :, None])[:, :, 0], weight @ self.negatives.T

    def mean_row(self, positive: Tensor, negative: Tensor) -> Tensor:
        """1/N times the sum of all rows, weighted by (1, P) and (1, M)."""
        total = (positive[:, None] @ self.positives)[:, 0] + negative @ self.negatives
        return total / self.count

    def value(self, weight: Tensor) -> float:
        positive, negative = self.margins(weight)
        loss = softplus(-positive).sum() + softplus(negative).sum()
        return float(loss / self.count + 0.5 * self.regularization * weight.square().sum())

    def gradient(self, weight: Tensor) -> Tensor:
        positive, negative = self.margins(weight)
        mean = self.mean_row(-(-positive).sigmoid(), negative.sigmoid())
        return mean + self.regularization * weight

    def curvature(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The second derivative of the loss of every row with respect to its margin."""
        positive, negative = (margin.sigmoid() for margin in self.margins(weight))
        return positive * (1 - positive), negative * (1 - negative)

    def hessian_product(self, curvature: tuple[Tensor, Tensor], vector: Tensor) -> Tensor:
        positive, negative = self.margins(vector)
        mean = self.mean_row(curvature[0] * positive, curvature[1] * negative)
        return mean + self.regularization * vector
