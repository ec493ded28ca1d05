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


def sample_posterior(
    states: Sequence[State],
    weights: Sequence[float] | Tensor,
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

    The weights w_i are those of ``average_states``. Samples are a function of the seed, the same on
    every device. ``gaussian`` averages ``averaged`` keys without sampling, as it does integer
    tensors: BatchNorm's running variance, for example, must not be negative.

    Examples:
        >>> states = [{"weight": torch.zeros(2)}, {"weight": torch.ones(2)}]
        >>> samples = sample_posterior(states, [1, 1], num_samples=3, seed=0, kind="dirichlet")
        >>> all(bool((0 <= s["weight"]).all() and (s["weight"] <= 1).all()) for s in samples)
        True
    """
    normalized = normalize_weights(weights, len(states))
    if kind == "dirichlet":
        draws = np.random.default_rng(seed).dirichlet([1.0] * len(states), size=num_samples)
        return [average_states(states, torch.from_numpy(gamma * normalized)) for gamma in draws]
    mean = average_states(states, weights)
    deviation = {}
    for key, mu in mean.items():
        if mu.is_floating_point():
            variance = torch.zeros_like(mu)
            for weight, state in zip(normalized, states, strict=True):
                variance += weight * (state[key].detach().to(mu) - mu).square()
            deviation[key] = variance.sqrt()
    # Drawn on the CPU in the order of sorted keys, so that samples do not depend on the device.
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(num_samples):
        sample = {key: tensor.clone() for key, tensor in mean.items()}
        for key in sorted(deviation.keys() - set(averaged)):
            noise = torch.randn(mean[key].shape, generator=generator).to(deviation[key])
            sample[key] = (mean[key] + deviation[key] * noise).to(mean[key].dtype)
        samples.append(sample)
    return samples


def bayesian_ensemble(logits: Tensor) -> Tensor:
    """Compute the mean of the members' probabilities, shape (N, C), of their logits (M, N, C).

    Examples:
        >>> bayesian_ensemble(torch.tensor([[[9.0, -9.0]], [[0.0, 0.0]]]))  # 2 members, 1 sample
        tensor([[0.7500, 0.2500]])
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.softmax(dim=-1).mean(dim=0)
