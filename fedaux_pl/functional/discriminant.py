"""A linear classifier from noisy class means and a noisy second moment, by empirical Bayes.

Everything here is post-processing of what was released. Public data tell in which directions rows
vary, and by how much: ``linear_discriminant`` works in the eigenbasis of their covariance, diag(d).
"""

from typing import NamedTuple

import torch
from torch import Tensor

_EIGENVALUE = 0.03  # the least variance within classes, relative to the prior
_SCALES = torch.linspace(-3.0, 1.5, 10, dtype=torch.float64).exp()  # of beta, around its moment


class LinearClassifier(NamedTuple):
    """<w_c, row> + b_c: ``weight`` of shape (C, k), ``bias`` of shape (C,)."""

    weight: Tensor
    bias: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits, shape (N, C)."""
        return rows @ self.weight.to(rows).T + self.bias.to(rows)

    def cooled(self, temperature: float) -> "LinearClassifier":
        """Return it with its logits divided by a temperature."""
        return LinearClassifier(self.weight / temperature, self.bias / temperature)


class Discriminant(NamedTuple):
    """A classifier, and the estimated mean (k,) and covariance (k, k) of all rows."""

    classifier: LinearClassifier
    mean: Tensor
    covariance: Tensor

    def cooled(self, temperature: float) -> "Discriminant":
        """Return it with the logits of the classifier divided by a temperature."""
        return self._replace(classifier=self.classifier.cooled(temperature))


def linear_discriminant(
    means: Tensor,
    variances: Tensor,
    priors: Tensor,
    moment: Tensor,
    noise: float,
    public: Tensor,
) -> Discriminant:
    """Compute S w_c = m_c - m and b_c = log pi_c - <m_c - m, w_c> / 2 - <m, w_c>.

    m = sum_c pi_c m_c, and S is the covariance within classes: the second moment minus that of the
    class means. Means and covariance are posterior means, see ``shrink_means`` and
    ``shrink_covariance``. Without noise this is Fisher's linear discriminant.

    Args:
        means: Class means m_c with noise, shape (C, k).
        variances: The variance of the noise in an entry of each mean, shape (C,).
        priors: pi_c, shape (C,), which sum to 1.
        moment: The mean of r r^T with noise, shape (k, k).
        noise: The standard deviation of the noise in its diagonal; 1 / sqrt(2) of it elsewhere.
        public: The covariance of public rows, shape (k, k); also () for k = 1, as of torch.cov.

    Examples:
        >>> means = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
        >>> moment = torch.tensor([[1.5, 0.0], [0.0, 0.5]]).double()  # 0.5 within, 1 between
        >>> half = torch.tensor([0.5, 0.5]).double()
        >>> linear_discriminant(means, 0 * half, half, moment, 0.0, half.diag()).classifier.weight
        tensor([[ 2.0000,  0.0000],
                [-2.0000,  0.0000]], dtype=torch.float64)
    """
    scales, basis = torch.linalg.eigh(public.view(2 * means.shape[1:]))
    # rows may vary in fewer directions, or not at all; below 1e-15 of their moment is rounding
    least = max(1e-9 * float(scales.max()), 1e-15 * float(moment.trace()), 1e-30)
    scales = scales.clamp(min=least)
    means = means @ basis
    moment = basis.T @ moment @ basis
    mean = priors @ means
    offsets, uncertainty = shrink_means(means - mean, variances, scales)
    between = (offsets.T * priors) @ offsets
    left = (priors @ uncertainty).diag()  # variance of the means that shrinkage takes away
    within = moment - mean.outer(mean) - between - left
    covariance = shrink_covariance(within, noise, scales) + left
    weight = torch.linalg.solve(covariance, offsets.T).T
    log_priors = priors.clamp(min=1e-12).log()
    bias = log_priors - (offsets / 2 + mean).mul(weight).sum(dim=1)
    classifier = LinearClassifier(weight @ basis.T, bias)
    total = basis @ (covariance + between) @ basis.T
    return Discriminant(classifier, basis @ mean, total)


def shrink_means(offsets: Tensor, variances: Tensor, public: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the posterior means and variances, shapes (C, k), of ``offsets`` m_c - m with noise.

    Model: an entry in direction j is N(0, beta d_j^2): classes differ most where rows vary most, by
    d = ``public``. It is observed with noise of variance v_c. beta maximizes the likelihood on a
    grid around the estimate by moments.
    """
    shape = public.square() / public.square().mean()
    noise = variances[:, None]
    smallest = variances.min().clamp(min=1e-30)
    weights = 1 / (variances / smallest).clamp(min=1.0)
    signals = offsets.square().mean(dim=1) - variances
    moment = weights @ signals / weights.sum()
    # at least a thousandth of the variance of rows: without a signal no direction would be left
    signal = max(float(moment), 1e-3 * float(public.mean()))

    def likelihood(beta: Tensor) -> Tensor:
        total = beta * shape + noise
        return -(total.log() + offsets.square() / total).sum()

    candidates = signal * _SCALES.to(offsets)
    likelihoods = torch.stack([likelihood(beta) for beta in candidates])
    prior = candidates[likelihoods.argmax()] * shape
    factor = prior / (prior + noise)
    return factor * offsets, factor * noise


def shrink_covariance(matrix: Tensor, noise: float, public: Tensor) -> Tensor:
    """Compute the posterior mean of a covariance that is observed with noise.

    Model: entry ij is N(c d_i [i = j], g c^2 d_i d_j), d = ``public``, and is observed with noise,
    of variance noise^2 on the diagonal and half of it elsewhere. c is that of the trace; g, one for
    the diagonal and one for the rest, is found by iterated weighted moments. Eigenvalues are at
    least 0.03 times the prior, and the noise that is left is added to the diagonal.
    """
    on_diagonal = torch.eye(len(public), dtype=torch.bool, device=matrix.device)
    total = float(public.sum())
    prior = max(float(matrix.trace()), 0.2 * total) / total * public
    scale = prior.outer(prior)
    rest = matrix - prior.diag()
    variance = torch.where(on_diagonal, 1.0, 0.5).to(matrix) * max(noise, 1e-9) ** 2
    spread = torch.zeros_like(matrix)
    for entries in (on_diagonal, ~on_diagonal):
        s = scale[entries]
        v = variance[entries]
        excess = rest[entries].square() - v
        g = 0.05
        for _ in range(6):
            weight = s / (g * s + v).square()
            g = max(float((excess * weight).sum() / (weight * s).sum()), 1e-5)
        spread[entries] = g * s
    factor = spread / (spread + variance)
    roots = prior.sqrt().outer(prior.sqrt())
    values, vectors = torch.linalg.eigh((prior.diag() + factor * rest) / roots)
    floored: Tensor = (vectors * values.clamp(min=_EIGENVALUE)) @ vectors.T * roots
    return floored + (factor * variance).sum(dim=1).sqrt().diag()


def shrunk_covariance(rows: Tensor) -> Tensor:
    """Estimate the covariance of N rows, shape (k, k), also of fewer rows than directions.

    The oracle approximating shrinkage of Chen et al. (2010), as in scikit-learn, is (1 - a) S + a
    tr S / k I with a = (tr S^2 + (tr S)^2) / (N + 1) / (tr S^2 - (tr S)^2 / k), at most 1. Without
    it, directions in which so few rows do not vary would seem to have no variance.

    Examples:
        >>> shrunk_covariance(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    length = rows.shape[1]
    covariance = torch.cov(rows.T, correction=0).view(length, length)
    trace = covariance.trace()
    squares = covariance.square().sum()
    excess = (squares - trace.square() / length).clamp(min=torch.finfo(rows.dtype).tiny)
    amount = (squares + trace.square()) / ((len(rows) + 1) * excess)
    identity = torch.eye(length, dtype=rows.dtype, device=rows.device)
    return torch.lerp(covariance, trace / length * identity, amount.clamp(max=1.0))
