"""The contrastive loss of SimCLR (Chen et al. 2020, eq. 1), NT-Xent.

l(i, j) = -log( exp(sim(z_i, z_j) / tau) / sum_{k != i} exp(sim(z_i, z_k) / tau) )
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent_loss(
    first: Tensor,
    second: Tensor,
    temperature: float,
    others: tuple[Tensor, Tensor] | None = None,
    offset: int = 0,
) -> Tensor:
    """The mean of l over both views of N images, each of them telling its partner from all others.

    No shape in it depends on a value and nothing is read back to the host, so that it can be
    recorded in a CUDA graph.

    Args:
        first: The projections of one view of each image, shape (N, d).
        second: Those of the other, in the same order.
        temperature: tau > 0.
        others: Both views of all M >= N images to compare with, where these are more than the N
            (those of all processes).
        offset: Where in ``others`` the N images begin.

    Returns:
        A scalar.
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(
            "both views must be projections of shape (images, d), but are "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, but is {temperature}")
    views = F.normalize(torch.cat([first, second]), dim=1)
    everyone = views if others is None else F.normalize(torch.cat(others), dim=1)
    count, total = len(first), len(everyone) // 2
    similarities = views @ everyone.T / temperature
    number = torch.arange(count, device=views.device) + offset
    itself = torch.cat([number, number + total])
    partner = torch.cat([number + total, number])
    columns = torch.arange(2 * total, device=views.device)
    similarities = similarities.masked_fill(itself[:, None] == columns, -torch.inf)
    return F.cross_entropy(similarities, partner)
