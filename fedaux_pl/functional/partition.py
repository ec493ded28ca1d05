"""How the private data are split over the clients (FedAUX, appendix B; Hsu et al. 2019).

For every class a distribution over the n clients is drawn, p_j ~ Dir(alpha). The matrix P of
these columns is scaled by normalising columns and rows in turn, so that all clients hold equally
many samples, and client i receives P_ij M_j of the M_j samples of class j.

Columns and rows cannot all sum to 1 unless there are as many clients as classes; what the
iteration determines is P up to factors for its rows and columns, so it is run here towards the
sums that are wanted: M_j for column j and an equal share for every row. It works with logarithms,
because for small alpha most entries of P are far below the smallest floating-point number.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def dirichlet_partition(
    labels: Tensor, num_clients: int, alpha: float, seed: int, max_iter: int = 1000
) -> list[Tensor]:
    """Splits samples over clients with a heterogeneity that alpha controls.

    Small alpha gives every client data of few classes, large alpha gives all clients the mixture
    of the whole. Every sample goes to exactly one client, and the sizes of any two clients differ
    by at most one.

    Args:
        labels: Integer labels of all samples, shape (N,).
        num_clients: n, at most N.
        alpha: The Dirichlet's concentration, greater than 0.
        seed: The split is a function of it and of the other arguments.
        max_iter: The most rounds of normalisation; what is left then is settled exactly.

    Returns:
        For each client the sorted indices of its samples, int64.

    Raises:
        ValueError: If an argument is out of range, or a client would stay empty.
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers of shape (N,), but are {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, but is {alpha}")
    if num_clients < 1:
        raise ValueError(f"there must be at least 1 client, but num_clients is {num_clients}")
    if len(labels) < num_clients:
        raise ValueError(
            f"{len(labels)} samples cannot be split over {num_clients} clients without an empty "
            f"one: use at most {len(labels)} clients"
        )
    values = labels.cpu().numpy()
    classes, class_sizes = np.unique(values, return_counts=True)
    rng = np.random.default_rng(seed)
    client_sizes = np.full(num_clients, len(values) // num_clients)
    client_sizes[rng.permutation(num_clients)[: len(values) % num_clients]] += 1
    log_p = _log_dirichlet(rng, alpha, num_clients, len(classes))
    share = _balance(log_p, client_sizes, class_sizes, max_iter)
    counts = _round(share, client_sizes, class_sizes)

    parts: list[list[Integers]] = [[] for _ in range(num_clients)]
    for column, name in enumerate(classes):
        members = rng.permutation(np.flatnonzero(values == name))
        for client, part in enumerate(np.split(members, np.cumsum(counts[:, column])[:-1])):
            parts[client].append(part)
    return [torch.from_numpy(np.sort(np.concatenate(part))) for part in parts]


def _log_dirichlet(rng: np.random.Generator, alpha: float, n: int, columns: int) -> Floats:
    """The logarithms of ``columns`` draws from the symmetric n-dimensional Dirichlet, (n, columns).

    log G(alpha) is drawn as log G(alpha + 1) + log(U) / alpha, which does not underflow.
    """
    uniform = 1 - rng.random((n, columns))
    log_gamma = np.log(rng.standard_gamma(alpha + 1, (n, columns))) + np.log(uniform) / alpha
    return np.asarray(log_gamma - logsumexp(log_gamma, axis=0, keepdims=True))


def _balance(log_p: Floats, rows: Integers, columns: Integers, max_iter: int) -> Floats:
    """Alternates normalising columns and rows towards the given sums (Sinkhorn's iteration)."""
    log_rows, log_columns = np.log(rows)[:, None], np.log(columns)[None]
    for _ in range(max_iter):
        log_p = log_p + log_rows - logsumexp(log_p, axis=1, keepdims=True)
        column_sums = logsumexp(log_p, axis=0, keepdims=True)
        log_p = log_p + log_columns - column_sums
        if np.abs(column_sums - log_columns).max() < 1e-9:
            break
    return np.asarray(np.exp(log_p))


def _round(share: Floats, rows: Integers, columns: Integers) -> Integers:
    """Integers near ``share`` whose rows and columns have exactly the given sums.

    Everything is rounded down (after shrinking the rows and columns that are too large, where the
    normalisation did not converge). What is then missing is given out in two passes over the
    cells: one sample each to those that lost most by rounding, and the rest, which only a matrix
    far from balance leaves, to the cells of the largest shares, which keeps it to few cells.
    """
    share = share * np.minimum(1, rows / share.sum(axis=1))[:, None]
    share = share * np.minimum(1, columns / np.maximum(share.sum(axis=0), 1e-300))[None]
    counts = np.floor(share + 1e-9).astype(np.int64)
    lacking_rows, lacking_columns = rows - counts.sum(axis=1), columns - counts.sum(axis=0)
    for lost, most in ((share - counts, 1), (share, None)):
        for cell in np.argsort(-lost, axis=None, kind="stable"):
            i, j = divmod(int(cell), len(columns))
            amount = min(lacking_rows[i], lacking_columns[j], *([] if most is None else [most]))
            if amount > 0:
                counts[i, j] += amount
                lacking_rows[i] -= amount
                lacking_columns[j] -= amount
    return counts
