"""FedBE's Bayesian model ensemble (Chen and Chao 2020, section 4).

The clients' models are treated as draws from a posterior over models. More models are sampled from
a distribution that is fitted to them. Clients, their average and the samples are the teachers.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.functional.averaging import State, average_states, normalize_weights

Posterior = Literal["gaussian", "dirichlet"]
Weights = Sequence[float] | Tensor


def sample_posterior(
    states: Sequence[State],
    weights: Weights,
    num_samples: int,
    seed: int,
    kind: Posterior = "gaussian",
    averaged: Collection[str] = (),
) -> list[dict[str, Tensor]]:
    """Sample the state dicts of M models from a distribution that is fitted to K client models.

    - ``gaussian``: each parameter independently, with the weighted mean mu = sum_i w_i theta_i and
      variance sigma^2 = sum_i w_i (theta_i - mu)^2 of the clients' parameters.
    - ``dirichlet``: sum_i gamma_i w_i theta_i / sum_i gamma_i w_i with gamma ~ Dir(1), a random
      convex combination of the clients.

    Args:
        states: K state dicts with the same keys, shapes and dtypes.
        weights: K weights |D_i|; they are divided by their sum.
        num_samples: M, at least 0.
        seed: The samples are a function of the seed, the same on every device.
        kind: ``gaussian`` or ``dirichlet``.
        averaged: Keys that ``gaussian`` averages without sampling: buffers, above all BatchNorm's
            running variance, of which a sample could be negative. Integer tensors are always
            averaged.

    Examples:
        >>> states = [{"weight": torch.zeros(2)}, {"weight": torch.ones(2)}]
        >>> samples = sample_posterior(states, [1, 1], num_samples=3, seed=0, kind="dirichlet")
        >>> all(bool((0 <= s["weight"]).all() and (s["weight"] <= 1).all()) for s in samples)
        True
    """
    if kind == "gaussian":
        return _sample_gaussian(states, weights, num_samples, seed, averaged)
    normalized = np.array(normalize_weights(weights, len(states)))
    draws = np.random.default_rng(seed).dirichlet([1.0] * len(states), size=num_samples)
    return [average_states(states, torch.from_numpy(gamma * normalized)) for gamma in draws]


def _sample_gaussian(
    states: Sequence[State],
    weights: Weights,
    num_samples: int,
    seed: int,
    averaged: Collection[str],
) -> list[dict[str, Tensor]]:
    """mu + sigma z with z ~ N(0, 1) and sigma = sqrt(sum_i w_i (theta_i - mu)^2)."""
    mean = average_states(states, weights)
    normalized = normalize_weights(weights, len(states))
    deviation = {}
    for key, mu in mean.items():
        if mu.is_floating_point():
            squares = [(state[key].detach().to(mu) - mu).square() for state in states]
            terms = (weight * square for weight, square in zip(normalized, squares, strict=True))
            deviation[key] = sum(terms, torch.zeros_like(mu)).sqrt()
    # Drawn on the CPU in the order of sorted keys, so that samples do not depend on the device.
    generator = torch.Generator().manual_seed(seed)
    samples: list[dict[str, Tensor]] = []
    for _ in range(num_samples):
        sample = {key: tensor.clone() for key, tensor in mean.items()}
        for key in sorted(deviation.keys() - set(averaged)):
            noise = torch.randn(mean[key].shape, generator=generator).to(deviation[key])
            sample[key] = (mean[key] + deviation[key] * noise).to(mean[key].dtype)
        samples.append(sample)
    return samples


def bayesian_ensemble(logits: Tensor) -> Tensor:
    """Compute the mean of the members' probabilities, shape (N, C): FedBE's prediction.

    Args:
        logits: f_m(x) of all members (clients, their average and the samples), shape (M, N, C).

    Examples:
        >>> bayesian_ensemble(torch.tensor([[[9.0, -9.0]], [[0.0, 0.0]]]))  # 2 members, 1 sample
        tensor([[0.7500, 0.2500]])
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.softmax(dim=-1).mean(dim=0)
