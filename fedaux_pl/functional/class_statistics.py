"""Joint statistics of rows and labels: class sums, class counts and second moment in one vector.

A record with the row r and the label y adds phi = (e_y (x) [r, t], sqrt(rho) r r^T) to the vector.
Of the symmetric matrix only the upper triangle is kept, its entries off the diagonal times sqrt(2),
so that the norm of the vector is that of the matrix.
"""

import math

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting


def statistics_sensitivity(rho: float) -> tuple[float, float]:
    """Bound by how much replacing one record moves the sum of phi, and choose t.

    With t = sqrt(1 - rho) and D^2 = 4 for rho <= 1/2, else with t = 1 / (2 sqrt(rho)) and D^2 = 2 +
    2 rho + 1 / (2 rho). Proof, for rows r and r' with s = |r|^2 <= 1, s' = |r'|^2 <= 1 and c =
    <r, r'>: If the label stays, the constants cancel and

        |phi - phi'|^2 = s + s' - 2 c + rho (s^2 + s'^2 - 2 c^2),

    which rises in s and s', and larger s and s' only widen the range of c: so s = s' = 1 is the
    worst case, 2 - 2 c + rho (2 - 2 c^2) for c in [-1, 1]. It is a parabola in c with its maximum
    at c = -1 / (2 rho), which lies in the range if rho >= 1/2: 2 + 2 rho + 1 / (2 rho); else the
    maximum is at c = -1: 4. If the label changes, the two blocks are orthogonal:

        |phi - phi'|^2 = s + s' + 2 t^2 + rho (s^2 + s'^2 - 2 c^2) <= 2 + 2 t^2 + 2 rho,

    and t is chosen so that this equals the other case: counts and second moment are then as exact
    as they can be at the price of the sums. Returns t and D.

    Examples:
        >>> statistics_sensitivity(rho=1.0)[0], round(statistics_sensitivity(rho=1.0)[1] ** 2, 6)
        (0.5, 4.5)
    """
    check_setting("rho", rho, 0 < rho < math.inf, "be positive and finite")
    if rho <= 0.5:
        return math.sqrt(1 - rho), 2.0
    return 0.5 / math.sqrt(rho), math.sqrt(2 + 2 * rho + 0.5 / rho)


def sum_statistics(rows: Tensor, labels: Tensor, rho: float) -> Tensor:
    """Sum phi over records, to a vector of length C (k + 1) + k (k + 1) / 2.

    The rows, shape (n, k), have norm at most 1; the labels, shape (n, C), are one-hot.

    Examples:
        >>> rows, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).double(), torch.eye(2)
        >>> sums, counts, moment = split_statistics(sum_statistics(rows, labels, 0.5), 2, 0.5)
        >>> counts, moment
        (tensor([1., 1.], dtype=torch.float64), tensor([[1.3600, 0.4800],
                [0.4800, 0.6400]], dtype=torch.float64))
    """
    constant, _ = statistics_sensitivity(rho)
    one_hot = labels.to(rows)
    counts = one_hot.sum(dim=0)[:, None]
    sums = torch.cat([one_hot.T @ rows, constant * counts], dim=1)
    above, factors = triangle(rows.shape[1])
    moment = rows.T @ rows
    entries = moment[above] * factors.to(rows)
    return torch.cat([sums.flatten(), math.sqrt(rho) * entries])


def split_statistics(vector: Tensor, num_classes: int, rho: float) -> tuple[Tensor, Tensor, Tensor]:
    """Split a vector of ``sum_statistics`` into sums (C, k), counts (C,) and second moment (k, k).

    With noise of standard deviation sigma in the vector, the sums have sigma, the counts sigma / t,
    the diagonal of the second moment sigma / sqrt(rho) and its other entries 1 / sqrt(2) of that.
    """
    k = statistics_row_length(len(vector), num_classes)
    constant, _ = statistics_sensitivity(rho)
    border = num_classes * (k + 1)
    table = vector[:border].view(num_classes, k + 1)
    above, factors = triangle(k)
    moment = vector.new_zeros(k, k)
    moment[above] = vector[border:] / factors.to(vector)
    moment = (moment + moment.triu(1).T) / math.sqrt(rho)
    return table[:, :-1], table[:, -1] / constant, moment


def pool_class_means(
    sums: Tensor,
    counts: Tensor,
    sigmas: Tensor,
    count_sigmas: Tensor,
) -> tuple[Tensor, Tensor]:
    """Estimate the mean row of each class from the noisy sums and counts of several clients.

    If the counts were known, s_ic = n_ic m_c + noise would give the least-squares estimate

        m_c = sum_i a_ic s_ic / sum_i a_ic n_ic,  a_ic = n_ic / (k sigma_i^2 + n_ic)

    if an entry of a row varies by 1 / k: rows have a norm of at most 1. ``known_counts`` are used
    in place of the counts. Without noise this is the mean of all records, sum_i s_ic / sum_i n_ic.

    Returns m_c, shape (C, k), and the variance of its noise, shape (C,), of sums (n, C, k), counts
    (n, C) and the standard deviations of their noise (n,).

    Examples:
        >>> sums, sigmas = torch.tensor([[[8.0, 0.0]], [[0.1, 0.1]]]), torch.tensor([1.0, 1.0])
        >>> pool_class_means(sums, torch.tensor([[4.0], [0.1]]), sigmas, sigmas)
        (tensor([[2., 0.]]), tensor([0.0625]))
    """
    known = known_counts(counts, count_sigmas)
    variances = sigmas.square()[:, None]
    weights = known / (sums.shape[2] * variances + known.clamp(min=1.0))
    total = (weights * known).sum(dim=0)
    weighted = torch.einsum("nc,nck->ck", weights, sums)
    noise = (weights.square() * variances).sum(dim=0)
    return weighted / total[:, None], noise / total.square()


def known_counts(counts: Tensor, sigmas: Tensor) -> Tensor:
    """Set noisy counts n_ic, shape (n, C), to 0 that are below twice their noise, shape (n,).

    If a class has no count above, its largest one is kept. If noise explains more than half of how
    the counts of clients differ, they are shrunk to their mean instead. In both cases a class has
    no less than the noise: by a smaller number the noise of its sum would be divided.

    Examples:
        >>> known_counts(torch.tensor([[9.0, 1.0], [1.5, -1.0]]), torch.tensor([1.0, 1.0]))
        tensor([[9., 1.],
                [0., 0.]])
    """
    noise = sigmas.square().mean()
    if len(counts) > 1 and counts.var(dim=0).mean() < 2 * noise:
        shrunk = shrink_to_mean(counts, sigmas).clamp(min=0.0)
        lack: Tensor = sigmas.norm() - shrunk.sum(dim=0)
        return shrunk + lack.clamp(min=0.0) / len(counts)
    known = torch.where(counts > 2 * sigmas[:, None], counts, 0.0)
    raised = counts.maximum(sigmas[:, None].clamp(min=1e-6))
    client = counts.argmax(dim=0, keepdim=True)
    largest = torch.zeros_like(counts).scatter(0, client, raised.gather(0, client))
    return torch.where((known > 0).any(dim=0), known, largest)


def class_priors(counts: Tensor, sigma: float) -> Tensor:
    """Estimate the shares of the classes from noisy counts: uniform if noise explains them.

    No count is less than sigma, the standard deviation of its noise, however small it was observed.

    Examples:
        >>> class_priors(torch.tensor([60.0, 40.0]), sigma=0.0)
        tensor([0.6000, 0.4000])
        >>> class_priors(torch.tensor([60.0, 40.0]), sigma=20.0)
        tensor([0.5000, 0.5000])
    """
    shrunk = shrink_to_mean(counts[:, None], counts.new_full((len(counts),), sigma))[:, 0]
    shrunk = shrunk.clamp(min=max(sigma, 1e-6 * float(counts.sum()), 1e-12))
    return shrunk / shrunk.sum()


def shrink_to_mean(vectors: Tensor, sigmas: Tensor) -> Tensor:
    """Move vectors towards their mean, as far as noise explains that they differ.

    Model (James and Stein 1961; Efron and Morris 1975): w_i = m + u_i + noise_i, u_i ~ N(0, t^2 I),
    noise of known standard deviation s_i. The estimate with the least mean squared error is then

        m + t^2 / (t^2 + s_i^2) (w_i - m).

    m is the mean of the vectors. t^2 is the variance of an entry over the vectors minus that of the
    noise, at least 0. If the largest sigma is more than twice the smallest, the noise of one small
    client would hide how all others differ: then vectors count by 1 / s_i^2 in t^2 and by
    1 / (t^2 + s_i^2) in m (DerSimonian and Laird 1986). For released vectors, whose sigmas are
    public, this is post-processing: it costs no privacy. A single vector, and one without noise, is
    unchanged. ``vectors`` have the shape (n, k) and ``sigmas`` (n,).

    Examples:
        >>> shrink_to_mean(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
        tensor([[1.5000],
                [2.5000]])
    """
    if len(vectors) == 1:
        return vectors.clone()
    noise = sigmas.square()
    if noise.max() <= 4 * noise.min():
        mean = vectors.mean(dim=0)
        spread = (vectors.var(dim=0).mean() - noise.mean()).clamp(min=0)
    else:
        least = 1e-12 * float(noise.max())  # in place of no noise
        weights = 1 / noise.clamp(min=least)
        weights = weights / weights.sum()
        squares = weights @ (vectors - weights @ vectors).square().mean(dim=1)
        others = weights * (1 - weights)
        spread = ((squares - others @ noise) / others.sum()).clamp(min=0)
        weights = 1 / (spread + noise).clamp(min=least)
        mean = weights @ vectors / weights.sum()
    factor = torch.where(noise > 0, spread / (spread + noise), 1.0)
    return mean + factor[:, None] * (vectors - mean)


def statistics_row_length(length: int, num_classes: int) -> int:
    """Return k, from the length C (k + 1) + k (k + 1) / 2 of a vector."""
    return round(math.sqrt((num_classes - 0.5) ** 2 + 2 * length) - num_classes - 0.5)


def triangle(k: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the rows and columns of the upper triangle, and the factors of its entries."""
    above = torch.triu_indices(k, k).unbind()
    on_diagonal = above[0] == above[1]
    # not torch.sqrt, which rounds differently on some CPUs: digests of releases depend on it
    root = torch.tensor(math.sqrt(2), dtype=torch.float64)
    return above, torch.where(on_diagonal, 1.0, root)
