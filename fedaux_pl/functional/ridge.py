"""Linear classifiers by ridge regression, from sums over records."""

import math

import torch
from torch import Tensor

from fedaux_pl.functional.discriminant import LinearClassifier


def ridge_classifier(
    sums: Tensor, moment: Tensor, regularization: float, noise: float = 0.0
) -> LinearClassifier:
    """Minimize sum |W r - e_y|^2 + lambda |W|^2 over all records, from their sums alone.

    W = S (M + lambda I)^-1. If the sums have noise, M need not be positive: lambda is then raised
    until the smallest eigenvalue is the norm of the noise, noise sqrt(2 k) (AdaSSP, Wang 2018).

    Args:
        sums: S = Y^T X, the sum of the rows of each class, shape (C, k).
        moment: M = X^T X, the sum of r r^T, shape (k, k).
        regularization: lambda.
        noise: Of the diagonal of M, a standard deviation; 1 / sqrt(2) of it elsewhere.

    Examples:
        >>> rows, labels = torch.tensor([[1.0], [-1.0], [1.0]]), torch.eye(2)[[0, 1, 0]]
        >>> ridge_classifier(labels.T @ rows, rows.T @ rows, regularization=1.0).weight
        tensor([[ 0.5000],
                [-0.2500]])
    """
    smallest = float(torch.linalg.eigvalsh(moment)[0])
    ridge = max(regularization, noise * math.sqrt(2 * len(moment)) - smallest)
    weight = torch.linalg.solve(moment + ridge * torch.eye(len(moment)).to(moment), sums.T).T
    return LinearClassifier(weight, torch.zeros_like(weight[:, 0]))


def classifier_of_means(sums: Tensor, counts: Tensor, shrinkage: float) -> LinearClassifier:
    """Estimate covariances by how the class means of clients differ, and regress with them.

    The mean m_ic of n_ic records has the covariance S_c / n_ic. Over the K_c clients with the class
    c, S_c = sum_i n_ic (m_ic - m_c) (m_ic - m_c)^T / (K_c - 1) is thus an unbiased estimate, if
    their records of a class have one distribution (Goswami et al. 2024). The classifier is

        w_c = G^-1 n_c m_c, scaled to norm 1,    G = sum_c (n_c - 1) (S_c + gamma I) + n m m^T:

    a ridge regression without the scatter between classes, and without an intercept.

    Args:
        sums: n_ic m_ic, shape (n, C, k).
        counts: n_ic, shape (n, C); 0 for a class that a client does not have.
        shrinkage: gamma k, above 0: rows of norm 1 have at most the mean variance 1 / k.

    Examples:
        >>> sums = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> classifier_of_means(sums, torch.tensor([[3.0, 1.0], [1.0, 1.0]]), 1.0).weight
        tensor([[ 0.8944, -0.4472],
                [-0.2747,  0.9615]])
    """
    totals = counts.sum(dim=0)
    means = sums.sum(dim=0) / totals[:, None]
    length = means.shape[1]
    gram = sums.sum(dim=(0, 1)).outer(sums.sum(dim=(0, 1))) / totals.sum()
    gamma = shrinkage / length * torch.eye(length).to(sums)
    for index, mean in enumerate(means):
        holders = counts[:, index] > 0
        sizes = counts[holders, index][:, None]
        offsets = sums[holders, index] / sizes - mean
        covariance = (sizes * offsets).T @ offsets / max(len(sizes) - 1, 1)
        gram = gram + (totals[index] - 1).clamp(min=0) * (covariance + gamma)
    weight = torch.linalg.solve(gram, (totals[:, None] * means).T).T
    return LinearClassifier(torch.nn.functional.normalize(weight, dim=1), torch.zeros_like(totals))
