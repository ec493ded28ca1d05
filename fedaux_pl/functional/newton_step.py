"""One step of logistic regression from a released gradient: private data give the gradient alone.

The Hessian depends on the rows, not on their labels, and public rows stand for the private ones.
"""

import math

import torch
from torch import Tensor

from fedaux_pl.functional.discriminant import Discriminant, LinearClassifier
from fedaux_pl.functional.head_fits import conjugate_gradients

RESIDUAL_BOUND = 0.7  # the norm to which residuals e_y - p are clipped
CONSTANT = 0.5  # the entry after a row, for the bias; a larger one costs noise in all entries

RESIDUAL_SENSITIVITY = 2 * RESIDUAL_BOUND * math.sqrt(1 + CONSTANT**2)
"""By how much replacing one record moves ``sum_residuals``.

Proof: the matrix of a record is the outer product of [r, 1/2], whose norm is at most sqrt(1.25),
and of a vector of norm at most 0.7. Its norm is the product of the two, and two of them differ by
at most twice that; r' = r with opposite residuals attains it.
"""

_RIDGE = 0.03  # relative to the mean eigenvalue of the Hessian


def sum_residuals(rows: Tensor, labels: Tensor, classifier: LinearClassifier) -> Tensor:
    """Compute sum clip(e_y - p) (x) [row, 1/2], (C, k + 1), the clipped gradient of a regression.

    The rows, shape (n, k), have norm at most 1, the labels, shape (n, C), are one-hot, and p is the
    softmax of the classifier's logits.

    Examples:
        >>> classifier = LinearClassifier(torch.zeros(2, 1), torch.zeros(2))
        >>> sum_residuals(torch.ones(1, 1), torch.tensor([[1, 0]]), classifier)
        tensor([[ 0.4950,  0.2475],
                [-0.4950, -0.2475]])
    """
    residuals, extended = residual_factors(rows, labels, classifier)
    return torch.matmul(residuals.T, extended)


def residual_factors(
    rows: Tensor,
    labels: Tensor,
    classifier: LinearClassifier,
) -> tuple[Tensor, Tensor]:
    """Return clip(e_y - p), shape (n, C), and [row, 1/2], shape (n, k + 1), of each record."""
    residuals = labels.to(rows) - classifier.logits(rows).softmax(dim=1)
    norms = residuals.norm(dim=1, keepdim=True)
    scale = RESIDUAL_BOUND * (1 - 1e-12) / norms
    return residuals * scale.clamp(max=1.0), _extended(rows)


def newton_step(
    classifier: LinearClassifier,
    gradient: Tensor,
    noise: float,
    records: int,
    public: Tensor,
    moments: Discriminant,
) -> LinearClassifier:
    """Move a classifier by (H + ridge)^-1 g.

    H is the Hessian of logistic regression on public rows that are recolored to the estimated mean
    and covariance of the private ones. The ridge is 0.03 of the mean eigenvalue of H plus the
    variance of g over that of a weight: the posterior mean, if weights are N(0, omega) with omega =
    (|g|^2 - variance) / tr H. The variance of an entry of g is that of the noise and, because g is
    a mean over n records, tr H / (n C (k + 1)).

    Args:
        classifier: That of ``sum_residuals``.
        gradient: g, the mean of ``sum_residuals`` over n ``records``, shape (C, k + 1).
        noise: The standard deviation of the noise in an entry of g.
        records: n.
        public: Public rows, shape (N, k).
        moments: The estimated mean and covariance of private rows.
    """
    rows = recolor(public, moments.mean.to(public), moments.covariance.to(public))
    x = _extended(rows)
    p = classifier.logits(x[:, :-1]).softmax(dim=1)
    gradient = (gradient - gradient.mean(dim=0)).to(x)  # a shift of all classes has no effect
    classes, length = gradient.shape
    traces = (p - p.square()).sum(dim=1) * x.square().sum(dim=1)
    trace = float(traces.mean())
    size = float(gradient.square().sum())
    if size == 0 or trace == 0:  # the classifier is exact, or certain of every row
        return classifier
    variance = noise**2 + trace / (records * gradient.numel())
    signal = max(size - 0.9 * gradient.numel() * variance, 1e-3 * size)
    omega = signal / trace
    ridge = _RIDGE * trace / (max(classes - 1, 1) * length) + variance / omega

    def product(direction: Tensor) -> Tensor:
        """(H + ridge) V for V of shape (C, k + 1), without H."""
        moved = p * (x @ direction.T)
        centered = moved - p * moved.sum(dim=1, keepdim=True)
        return centered.T @ x / len(x) + ridge * direction

    step = conjugate_gradients(product, gradient, tolerance=0.0, max_iter=1000)
    step = step.to(classifier.weight)
    weight = classifier.weight + step[:, :-1]
    bias = classifier.bias + CONSTANT * step[:, -1]
    return LinearClassifier(weight, bias)


def recolor(rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Move rows (N, k) as little as possible so that they have another mean and covariance T.

    They are multiplied by the symmetric A with A C A = T, where C is the covariance of the rows.
    """
    present = torch.cov(rows.T).view(2 * rows.shape[1:])
    root = _power(present, 0.5)
    inverse = _power(present, -0.5)
    change = inverse @ _power(root @ covariance @ root, 0.5) @ inverse
    return (rows - rows.mean(dim=0)) @ change + mean


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A symmetric matrix to a power; eigenvalues are at least 1e-12."""
    values, vectors = torch.linalg.eigh(matrix)
    power: Tensor = (vectors * values.clamp(min=1e-12) ** exponent) @ vectors.T
    return power


def _extended(rows: Tensor) -> Tensor:
    """[row, 1/2]."""
    return torch.cat([rows, torch.full_like(rows[:, :1], CONSTANT)], dim=1)
