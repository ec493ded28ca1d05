"""Shrinkage of noisy vectors towards their mean (James and Stein 1961; Efron and Morris 1975).

Model: w_i = m + u_i + noise_i with u_i ~ N(0, t^2 I) and noise of known standard deviation s_i.
For known m and t the estimate of m + u_i with the least mean squared error is

    m + t^2 / (t^2 + s_i^2) (w_i - m).

m and t are estimated. If the w_i differ by no more than the noise, then t = 0: every estimate is m.
"""

import torch
from torch import Tensor


def shrink_to_mean(vectors: Tensor, sigmas: Tensor) -> Tensor:
    """Move vectors towards their mean, as far as noise explains that they differ.

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
