"""The vector that the server receives from a client, or from a secure sum over clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.scoring.costs import Release
from fedaux_pl.scoring.public_map import PublicMap


@dataclass(frozen=True)
class ReleasedHead:
    """A vector with its noise, which a client sends before the first round, and how to use it."""

    client: int  # the client that sent the vector; the first client of a secure sum
    weight: Tensor  # w_i with noise, float64 of shape (k,)
    public_map: PublicMap  # maps h_0(x) to rows; public unless ``norm_bound`` is ``private``
    release: Release  # what the vector costs the client
    members: tuple[int, ...] = ()  # all clients of a secure sum; empty for the vector of one client

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose data the vector summarizes."""
        return self.members or (self.client,)

    def logits(self, features: Tensor) -> Tensor:
        """Compute <w_i, row(x)> from features h_0(x) of shape (N, d), float64 of shape (N,)."""
        rows = self.public_map.rows(features)
        return self.weight.to(rows.device) @ rows.T


def clients_of(heads: Sequence[ReleasedHead]) -> list[int]:
    """Return the numbers of the clients whose data the heads summarize, in ascending order."""
    return sorted(client for head in heads for client in head.clients)


def stack_heads(heads: Sequence[ReleasedHead]) -> tuple[Tensor, Tensor]:
    """Stack the vectors of heads.

    Returns:
        The vectors, shape (n, length), and the standard deviation of the noise in each of them,
        shape (n,).
    """
    vectors = torch.stack([head.weight for head in heads])
    return vectors, vectors.new_tensor([head.release.total_sigma for head in heads])
