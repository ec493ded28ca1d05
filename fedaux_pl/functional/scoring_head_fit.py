"""Certainty scoring (FedAUX, section 3.4): the fit of a scoring head, and its scores.

Client i fits a logistic regression that separates its data D_i from the public negatives D^-,

    w_i = argmin_w J(w) = 1/N sum_{x in D_i and D^-} log(1 + exp(-t_x <w, h(x)>)) + lambda/2 |w|^2

with t_x = 1 on D_i, -1 on D^- and N = |D_i| + |D^-|. (The paper prints the loss as
log(1 + exp(z)); with the labels as it defines them, the sign above is the one that separates.)
The caller bounds the norms of the rows h(x); they are used as given.

J is lambda-strongly convex: where its gradient has norm g, w is within g / lambda of the minimizer.
Everything is computed in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedaux_pl.functional.convex import lbfgs, newton


def fit_scoring_head(
    positives: Tensor,
    negatives: Tensor,
    regularization: float,
    max_iter: int = 1000,
    tolerance: float = 1e-10,
) -> tuple[Tensor, float]:
    """Fits the scoring head of one client.

    Features on a GPU: Newton steps on that GPU. Features on the CPU: L-BFGS, then Newton steps if
    it stopped above the tolerance. L-BFGS compares values of J, in which a step shorter than the
    square root of the machine precision is lost to rounding; Newton steps use the gradient only.

    Args:
        positives: h(x) on D_i, shape (|D_i|, d).
        negatives: h(x) on D^-, shape (|D^-|, d).
        regularization: lambda > 0.
        max_iter: The maximum number of iterations of each solver.
        tolerance: The norm of the gradient of J at which the fit is finished.

    Returns:
        The weight w, float64 of shape (d,) on the CPU, and the norm of the gradient of J at w,
        which exceeds the tolerance if ``max_iter`` or the tolerance was too small.

    Example:
        >>> positives, negatives = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> weight, gradient_norm = fit_scoring_head(positives, negatives, regularization=0.1)
        >>> [round(w, 4) for w in weight.tolist()], gradient_norm <= 1e-10
        ([1.1775, -1.1775], True)
    """
    if not 0 < regularization < float("inf"):
        raise ValueError(f"lambda must be positive and finite, but is {regularization}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, but is {max_iter}")
    if not tolerance > 0:
        raise ValueError(f"the tolerance must be positive, but is {tolerance}")
    _check_rows("negatives", negatives)
    _check_rows("positives", positives)
    if positives.shape[1] != negatives.shape[1]:
        raise ValueError(
            f"positives have {positives.shape[1]} features and negatives {negatives.shape[1]}"
        )
    objective = _Objective.create(positives, negatives, regularization)
    start = torch.zeros_like(objective.negatives[:1])
    if not negatives.is_cuda:
        start = lbfgs(objective, start, max_iter, tolerance)
    weight, gradient_norm = newton(objective, start, max_iter, tolerance)
    return weight[0].cpu(), gradient_norm


def certainty_scores(features: Tensor, weight: Tensor, xi: float = 1e-8) -> Tensor:
    """Computes s_i(x) = 1 / (1 + exp(-<w_i, h(x)>)) + xi.

    Args:
        features: h(x), scaled as they were for the fit, shape (N, d).
        weight: w_i of shape (d,), or those of K clients, (K, d).
        xi: Keeps the sum of the scores away from 0; at least 0.

    Returns:
        Scores of shape (N,) or (K, N).

    Example:
        >>> certainty_scores(torch.tensor([[0.0, 1.0]]), torch.tensor([2.0, 0.0]), xi=0.25)
        tensor([0.7500])
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


def _check_rows(name: str, rows: Tensor) -> None:
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(
            f"{name} must be (samples, d) with at least one sample, but are {tuple(rows.shape)}"
        )
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} hold NaN or infinity")


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
