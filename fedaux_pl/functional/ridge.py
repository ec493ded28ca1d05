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
