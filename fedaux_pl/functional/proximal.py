"""The proximal term of FedPROX (Li et al. 2020): mu/2 |theta - theta_0|^2."""

from collections.abc import Iterable

import torch
from torch import Tensor


def proximal_penalty(params: Iterable[Tensor], anchor: Iterable[Tensor], mu: float) -> Tensor:
    """Computes mu/2 |theta - theta_0|^2, summed over all tensors.

    Args:
        params: The tensors of theta, which the gradient reaches.
        anchor: The tensors of theta_0, the server's model at the start of the round, in the same
            order and of the same shapes; no gradient reaches them.
        mu: The strength, at least 0.

    Returns:
        A scalar.
    """
    if not mu >= 0:
        raise ValueError(f"mu must be at least 0, but is {mu}")
    theta, theta_0 = list(params), list(anchor)
    if not theta or len(theta) != len(theta_0):
        raise ValueError(f"{len(theta)} parameters cannot be held near {len(theta_0)} anchors")
    for index, (param, origin) in enumerate(zip(theta, theta_0, strict=True)):
        if param.shape != origin.shape:
            raise ValueError(
                f"parameter {index} has shape {tuple(param.shape)}, "
                f"its anchor {tuple(origin.shape)}: give both in the same order"
            )
    squares = [
        (param - origin.detach()).square().sum()
        for param, origin in zip(theta, theta_0, strict=True)
    ]
    return 0.5 * mu * torch.stack(squares).sum()
