"""A classifier from noisy sums of rows, class by class: pooled means and a linear discriminant.

Client i has the sums s_ic of its rows of class c and the counts n_ic, each entry with Gaussian
noise of standard deviation sigma_i. All that is computed here is post-processing of what was
released.
"""

import torch
from torch import Tensor


def pool_class_means(
    sums: Tensor, counts: Tensor, sigmas: Tensor, threshold: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Estimate the mean row of each class over all clients.

    If the counts were known, s_ic = n_ic m_c + noise would give the least-squares estimate

        m_c = sum_i n_ic s_ic / sigma_i^2 / sum_i n_ic^2 / sigma_i^2

    with noise of variance 1 / sum_i n_ic^2 / sigma_i^2. Noisy counts are used in their place; those
    below ``threshold`` sigma_i, which may be noise alone, count as 0. If a class has no count
    above, its largest one is used.

    Args:
        sums: s_ic, shape (n, C, k).
        counts: n_ic, shape (n, C).
        sigmas: sigma_i, shape (n,).
        threshold: Below which multiple of sigma_i a count is noise.

    Returns:
        m_c, shape (C, k), and the variance of its noise, shape (C,).

    Example:
        >>> sums = torch.tensor([[[8.0, 0.0]], [[0.1, 0.1]]])
        >>> pool_class_means(sums, torch.tensor([[4.0], [0.1]]), torch.tensor([1.0, 1.0]))
        (tensor([[2., 0.]]), tensor([0.0625]))
    """
    precision = torch.where(sigmas > 0, 1 / sigmas.square(), 1.0)[:, None]
    known = torch.where(counts > threshold * sigmas[:, None], counts, 0.0)
    largest = torch.zeros_like(counts).scatter(
        0, counts.argmax(dim=0, keepdim=True), counts.amax(dim=0, keepdim=True).clamp(min=1e-12)
    )
    known = torch.where((known > 0).any(dim=0), known, largest)
    total = (known.square() * precision).sum(dim=0)
    means = torch.einsum("nc,nck->ck", known * precision, sums) / total[:, None]
    noise = (known.square() * precision.square() * sigmas.square()[:, None]).sum(dim=0)
    return means, noise / total.square()


def discriminant_directions(means: Tensor, variances: Tensor, covariance: Tensor) -> Tensor:
    """Compute the directions of a linear discriminant from means with noise.

    Model: the mean of class c is m_c ~ N(m, beta S^2) around the mean m of all classes, with the
    public covariance S of rows: classes differ most where rows vary most. It is observed with noise
    of variance v_c in every entry. Its best estimate is beta S^2 (beta S^2 + v_c)^-1 (m_c - m), and
    the linear discriminant, S^-1 times that, is

        w_c = beta S (beta S^2 + v_c)^-1 (m_c - m).

    Without noise this is S^-1 (m_c - m), Fisher's discriminant; with much noise it is S (m_c - m),
    up to a factor, which mutes directions of little variance. beta is estimated by what noise does
    not explain of the differences between the means. Means with more noise in an entry than rows
    vary in all entries are left out of m and beta, unless all have as much.

    Args:
        means: m_c, shape (C, k).
        variances: v_c, shape (C,).
        covariance: S, shape (k, k).

    Returns:
        w_c, shape (C, k).

    Example:
        >>> means = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> discriminant_directions(means, torch.zeros(2), torch.diag(torch.tensor([1.0, 4.0])))
        tensor([[ 1.0000,  0.2500],
                [-1.0000, -0.2500]])
    """
    k, squared = len(covariance), covariance @ covariance
    # a mean that is noise alone can have any length, and must not move the mean of the others
    known = variances <= covariance.diagonal().sum()
    known = known | ~known.any()
    offsets = means - means[known].mean(dim=0)
    signal = (offsets.square().sum(dim=1) - k * variances)[known].mean()
    # at least a thousandth of the variance of rows: without a signal no direction would be left
    signal = signal.clamp(min=1e-3 * float(covariance.diagonal().sum()))
    prior = signal / squared.diagonal().sum() * squared
    floor = 1e-9 * prior.diagonal().mean()  # rows may vary in fewer than k directions
    identity = torch.eye(k, dtype=means.dtype, device=means.device)
    systems = prior + (variances + floor)[:, None, None] * identity
    filtered: Tensor = torch.linalg.solve(systems, offsets[:, :, None])
    directions: Tensor = filtered[:, :, 0] @ covariance
    return directions * signal / squared.diagonal().sum()
