"""FedBE's Bayesian model ensemble (Chen and Chao 2020, section 4).

The models of the clients are read as draws from a posterior over models; more models are sampled
from a distribution fitted to them, and the ensemble of clients, average and samples teaches.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.functional.averaging import State, average_states, normalized_weights

Posterior = Literal["gaussian", "dirichlet"]


def sample_posterior(
    states: Sequence[State],
    weights: Sequence[float] | Tensor,
    num_samples: int,
    seed: int,
    kind: Posterior = "gaussian",
    concentration: float = 1.0,
    averaged: Collection[str] = (),
) -> list[dict[str, Tensor]]:
    """Samples M models from the distribution fitted to K client models.

    - ``gaussian``: every parameter on its own, with the weighted mean and variance of the
      clients', mu = sum_i w_i theta_i and sigma^2 = sum_i w_i (theta_i - mu)^2.
    - ``dirichlet``: sum_i gamma_i w_i theta_i / sum_i gamma_i w_i with gamma ~ Dir(concentration),
      a random point between the clients.

    Args:
        states: K state dicts with the same keys, shapes and dtypes.
        weights: K weights |D_i|; they are divided by their sum.
        num_samples: M, at least 0.
        seed: The samples are a function of it; the same on every device.
        kind: ``gaussian`` or ``dirichlet``.
        concentration: The Dirichlet's parameter, the same for every client.
        averaged: Keys that the Gaussian does not perturb but averages: buffers, above all
            BatchNorm's running variance, which a Gaussian could make negative. Integer tensors
            are always averaged.

    Returns:
        M state dicts.
    """
    if num_samples < 0:
        raise ValueError(f"the number of samples must be at least 0, but is {num_samples}")
    if kind == "dirichlet":
        if not 0 < concentration < float("inf"):
            raise ValueError(f"the concentration must be positive, but is {concentration}")
        shares = np.array(normalized_weights(weights, len(states)))
        rng = np.random.default_rng(seed)
        draws = rng.dirichlet([concentration] * len(states), size=num_samples)
        return [average_states(states, torch.from_numpy(gamma * shares)) for gamma in draws]
    if kind != "gaussian":
        raise ValueError(f"kind must be 'gaussian' or 'dirichlet', but is {kind!r}")
    mean = average_states(states, weights)
    if unknown := sorted(set(averaged) - mean.keys()):
        raise ValueError(f"averaged names keys that the states do not have: {unknown}")
    spread = _standard_deviation(states, weights, mean)
    # Drawn on the CPU, key by key in sorted order, so that the device changes nothing.
    generator = torch.Generator().manual_seed(seed)
    samples: list[dict[str, Tensor]] = []
    for _ in range(num_samples):
        sample = {key: tensor.clone() for key, tensor in mean.items()}
        for key in sorted(spread.keys() - set(averaged)):
            noise = torch.randn(mean[key].shape, generator=generator)
            sample[key] = (mean[key] + spread[key] * noise.to(spread[key])).to(mean[key].dtype)
        samples.append(sample)
    return samples


def _standard_deviation(
    states: Sequence[State], weights: Sequence[float] | Tensor, mean: State
) -> dict[str, Tensor]:
    """The weighted standard deviation of every floating tensor around the mean."""
    shares = normalized_weights(weights, len(states))
    spread = {}
    for key, centre in mean.items():
        if centre.is_floating_point():
            deviations = [(state[key].detach().to(centre) - centre).square() for state in states]
            spread[key] = sum(
                (share * d for share, d in zip(shares, deviations, strict=True)),
                torch.zeros_like(centre),
            ).sqrt()
    return spread


def bayesian_ensemble(logits: Tensor) -> Tensor:
    """The prediction of FedBE's ensemble: the mean of its members' probabilities.

    Args:
        logits: f_m(x) of every member, clients, their average and the samples, shape (M, N, C).

    Returns:
        Probabilities of shape (N, C).
    """
    if logits.ndim != 3 or logits.shape[0] == 0:
        raise ValueError(
            f"logits must be (members, samples, classes) with at least one member, but are "
            f"{tuple(logits.shape)}"
        )
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.softmax(dim=-1).mean(dim=0)
