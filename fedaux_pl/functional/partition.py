"""The split of the private data over clients (FedAUX, appendix B; Hsu et al. 2019).

For every class j a distribution over the n clients is drawn, p_j ~ Dir(alpha). The columns and rows
of the matrix P = (p_1, p_2, ...) are normalized in turn towards the sums that are needed: M_j, the
number of samples, for the column of class j, and the same sum for every row. It works on
logarithms, because for small alpha most entries of P are below the smallest floating-point number.

Two other splits of the literature are here for comparison: unequal sizes (no normalization of the
rows) and shards (McMahan et al. 2017).
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from fedaux_pl.errors import check_setting

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def dirichlet_partition(
    labels: Tensor,
    num_clients: int,
    alpha: float,
    seed: int,
    max_iter: int = 1000,
) -> list[Tensor]:
    """Split samples over clients; alpha controls the heterogeneity.

    With small alpha every client gets samples of few classes, with large alpha all clients get the
    same mixture of classes. Every sample goes to exactly one client, and the sizes of any two
    clients differ by at most one, also if ``max_iter`` ends the iteration before it has converged.
    Returns the sorted indices of each client's samples. ``labels`` are integers, shape (N,).

    Examples:
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> clients = dirichlet_partition(labels, num_clients=2, alpha=0.01, seed=0)
        >>> [labels[indices].tolist() for indices in clients]
        [[1, 1, 1], [0, 0, 0]]
    """
    _check(labels, num_clients, alpha)
    values = labels.cpu().numpy()
    classes, class_sizes = np.unique(values, return_counts=True)
    rng = np.random.default_rng(seed)
    size, rest = divmod(len(values), num_clients)
    client_sizes = np.full(num_clients, size)
    client_sizes[rng.permutation(num_clients)[:rest]] += 1
    log_p = _log_dirichlet(rng, alpha, num_clients, len(classes))
    expected = _balance(log_p, client_sizes, class_sizes, max_iter)
    counts = _round(expected, client_sizes, class_sizes)
    return _assign(rng, values, classes, counts)


def unequal_partition(labels: Tensor, num_clients: int, alpha: float, seed: int) -> list[Tensor]:
    """Split samples by p_j ~ Dir(alpha) alone, so that clients also differ in size.

    Draws are repeated until every client has 2 samples, at most 1,000 times: a small alpha with
    many clients is refused. Returns the sorted indices of each client's samples.

    Examples:
        >>> clients = unequal_partition(torch.arange(100) % 2, num_clients=3, alpha=1.0, seed=0)
        >>> [len(indices) for indices in clients]
        [75, 23, 2]
    """
    _check(labels, num_clients, alpha)
    values = labels.cpu().numpy()
    classes, class_sizes = np.unique(values, return_counts=True)
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        p = np.exp(_log_dirichlet(rng, alpha, num_clients, len(classes)))
        counts = rng.multinomial(class_sizes, p.T).T
        if counts.sum(axis=1).min() >= 2:
            return _assign(rng, values, classes, counts)
    raise ValueError(
        f"alpha: got {alpha} for {num_clients} clients of unequal sizes, of which some always have "
        "fewer than 2 samples; expected a larger alpha or fewer clients"
    )


def shard_partition(
    labels: Tensor, num_clients: int, seed: int, shards_per_client: int = 2
) -> list[Tensor]:
    """Sort samples by class, cut them into equal shards, and give each client some at random.

    With 2 shards a client has samples of about two classes (McMahan et al. 2017). Returns the
    sorted indices of each client's samples.

    Examples:
        >>> labels = torch.arange(40) % 4
        >>> clients = shard_partition(labels, num_clients=2, seed=0)
        >>> [labels[indices].unique().tolist() for indices in clients]
        [[1, 2], [0, 3]]
    """
    count = num_clients * shards_per_client
    _check(labels, num_clients, at_least=shards_per_client)
    rng = np.random.default_rng(seed)
    values = labels.cpu().numpy()
    order = rng.permutation(len(values))
    order = order[np.argsort(values[order], kind="stable")]
    shards = np.array_split(order, count)
    dealt = rng.permutation(count).reshape(num_clients, shards_per_client)
    clients = [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]
    return [torch.from_numpy(np.sort(client)) for client in clients]


def _check(labels: Tensor, num_clients: int, alpha: float = 1.0, at_least: int = 1) -> None:
    """Raise a ValueError unless every client can have ``at_least`` so many samples."""
    is_integer = not labels.is_floating_point() and labels.dtype != torch.bool
    got = labels.dtype, tuple(labels.shape)
    check_setting("labels", got, labels.ndim == 1 and is_integer, "be integers of shape (N,)")
    check_setting("alpha", alpha, 0 < alpha < math.inf, "be positive and finite")
    check_setting("num_clients", num_clients, num_clients >= 1, "be at least 1")
    if len(labels) < num_clients * at_least:
        raise ValueError(
            f"{len(labels)} samples cannot be split over {num_clients} clients without an empty "
            f"one: use at most {max(1, len(labels) // 2)} clients, so that each has 2 samples "
            "(with BatchNorm a single one can be too few)"
        )


def _assign(
    rng: np.random.Generator, labels: Integers, classes: Integers, counts: Integers
) -> list[Tensor]:
    """Give client i ``counts[i, j]`` random samples of class j."""
    clients: list[list[Integers]] = [[] for _ in counts]
    for label, class_counts in zip(classes, counts.T, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        groups = np.split(members, np.cumsum(class_counts)[:-1])
        for client, group in zip(clients, groups, strict=True):
            client.append(group)
    return [torch.from_numpy(np.sort(np.concatenate(groups))) for groups in clients]


def _log_dirichlet(rng: np.random.Generator, alpha: float, n: int, columns: int) -> Floats:
    """Logarithms of draws from the symmetric n-dimensional Dirichlet distribution, (n, columns)."""
    # log Gamma(alpha) is drawn as log Gamma(alpha + 1) + log(U) / alpha, which does not underflow
    uniform = 1 - rng.random((n, columns))
    gamma = rng.standard_gamma(alpha + 1, (n, columns))
    log_gamma = np.log(gamma) + np.log(uniform) / alpha
    return np.asarray(log_gamma - logsumexp(log_gamma, axis=0, keepdims=True))


def _balance(log_p: Floats, rows: Integers, columns: Integers, max_iter: int) -> Floats:
    """Normalize rows and columns in turn towards the given sums (Sinkhorn's iteration)."""
    log_rows = np.log(rows)[:, None]
    log_columns = np.log(columns)[None]
    for _ in range(max_iter):
        log_p = log_p + log_rows - logsumexp(log_p, axis=1, keepdims=True)
        column_sums = logsumexp(log_p, axis=0, keepdims=True)
        log_p = log_p + log_columns - column_sums
        if np.abs(column_sums - log_columns).max() < 1e-9:
            break
    return np.asarray(np.exp(log_p))


def _round(expected: Floats, rows: Integers, columns: Integers) -> Integers:
    """Round a matrix to integers whose rows and columns have exactly the given sums.

    All entries are rounded down, after scaling down rows and columns that are too large because the
    iteration did not converge. The remaining samples are assigned in two passes over the entries:
    one sample each in the order of the fraction lost by rounding, then any number in the order of
    the entries. Only a matrix far from balance needs the second pass, whose order keeps the samples
    in few entries.
    """
    row_factors = np.minimum(1, rows / expected.sum(axis=1))
    expected = expected * row_factors[:, None]
    column_sums = np.maximum(expected.sum(axis=0), 1e-300)
    expected = expected * np.minimum(1, columns / column_sums)
    counts = np.floor(expected + 1e-9).astype(np.int64)
    missing_rows = rows - counts.sum(axis=1)
    missing_columns = columns - counts.sum(axis=0)
    for priority, limit in ((expected - counts, 1), (expected, math.inf)):
        for entry in np.argsort(-priority, axis=None, kind="stable"):
            i, j = divmod(int(entry), len(columns))
            amount = int(min(missing_rows[i], missing_columns[j], limit))
            if amount > 0:
                counts[i, j] += amount
                missing_rows[i] -= amount
                missing_columns[j] -= amount
    return counts
