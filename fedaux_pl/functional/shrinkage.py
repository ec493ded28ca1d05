"""What several noisy vectors say about each other (James and Stein 1961; Efron and Morris 1975).

Clients' vectors are seen as w_i = m + u_i + noise_i with u_i ~ N(0, t^2 I) and noise of a known
standard deviation s_i. Given the w_i, the best guess of m + u_i is

    m + t^2 / (t^2 + s_i^2) (w_i - m).

Where clients differ by no more than the noise does, t = 0 and all of them are taken to be alike.
"""

import torch
from torch import Tensor


def shrink_to_mean(vectors: Tensor, sigmas: Tensor) -> Tensor:
    """Moves vectors towards their mean, as far as noise explains that they differ.

    t^2 is the variance of an entry over the vectors less that of the noise, at least 0. A function
    of what was released and of the public scale of the noise: post-processing.

    Args:
        vectors: w_i, shape (n, k).
        sigmas: The standard deviation of the noise in each entry of w_i, shape (n,).

    Returns:
        The guesses, of the same shape. A single vector, and one without noise, stays as it is.
    """
    if vectors.ndim != 2 or len(vectors) == 0 or sigmas.shape != vectors.shape[:1]:
        raise ValueError(
            "vectors must be (n, k) with at least one of them, and sigmas (n,), but are "
            f"{tuple(vectors.shape)} and {tuple(sigmas.shape)}"
        )
    if not bool((sigmas >= 0).all()):
        raise ValueError("the standard deviations of the noise must be at least 0")
    if len(vectors) == 1:
        return vectors.clone()
    mean, noise = vectors.mean(dim=0), sigmas.square()
    spread = (vectors.var(dim=0).mean() - noise.mean()).clamp(min=0)
    kept = torch.where(noise > 0, spread / (spread + noise), 1.0)
    return mean + kept[:, None] * (vectors - mean)
