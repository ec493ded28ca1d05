"""Linear classifiers by ridge regression, from sums over records."""

import math

import torch
from torch import Tensor

from fedaux_pl.functional.discriminant import LinearClassifier


def ridge_classifier(
    sums: Tensor,
    counts: Tensor,
    moment: Tensor,
    records: int,
    regularization: float,
    noise: float = 0.0,
) -> LinearClassifier:
    """Minimize sum |W r + b - e_y|^2 + lambda |W|^2 over all records, from their sums alone.

    With the mean row m of n records, W = (S - n_c m^T) (M - n m m^T + lambda I)^-1 and b = n_c / n
    - W m. If the sums have noise, the matrix need not be positive: lambda is then raised until its
    smallest eigenvalue is the norm of the noise, noise sqrt(2 k) (AdaSSP, Wang 2018).

    Args:
        sums: S, the sum of the rows of each class, shape (C, k).
        counts: n_c, the number of records of each class, shape (C,).
        moment: M, the sum of r r^T, shape (k, k).
        records: n.
        regularization: lambda.
        noise: Of the diagonal of M, a standard deviation; 1 / sqrt(2) of it elsewhere.

    Examples:
        >>> rows, labels = torch.tensor([[1.0], [-1.0], [1.0]]), torch.eye(2)[[0, 1, 0]]
        >>> sums = labels.T @ rows, labels.sum(dim=0), rows.T @ rows
        >>> ridge_classifier(*sums, records=3, regularization=8 / 3).weight
        tensor([[ 0.2500],
                [-0.2500]])
    """
    mean = sums.sum(dim=0) / records
    gram = moment - records * mean.outer(mean)
    smallest = float(torch.linalg.eigvalsh(gram)[0])
    ridge = max(regularization, noise * math.sqrt(2 * len(mean)) - smallest)
    offsets = sums - counts.outer(mean)
    weight = torch.linalg.solve(gram + ridge * torch.eye(len(mean)).to(gram), offsets.T).T
    return LinearClassifier(weight, counts / records - weight @ mean)


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
