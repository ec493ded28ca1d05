"""Which private training samples each client holds, and which of them it holds out.

A client's samples are given by their positions in the private training data.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedaux_pl.errors import DataError
from fedaux_pl.functional import (
    derive_seed,
    dirichlet_partition,
    shard_partition,
    unequal_partition,
)

Split = Literal["equal", "unequal", "shards"]
"""How samples are split at random over clients, if the data do not name their clients."""


def split_at_random(
    labels: Tensor, num_clients: int, split: Split, alpha: float, seed: int
) -> tuple[Tensor, ...]:
    """Split samples at random over clients; every sample goes to exactly one client.

    Args:
        labels: The class of each sample, integers of shape (N,).
        num_clients: The number of clients.
        split: ``equal`` gives all clients as many samples, ``unequal`` lets their sizes differ,
            and ``shards`` gives each client two shards of the samples sorted by class.
        alpha: The concentration of the Dirichlet distribution; ``shards`` does not use it.
        seed: The seed of the split.

    Returns:
        For each client the ascending positions of its samples.
    """
    if split == "shards":
        clients = shard_partition(labels, num_clients, seed)
    elif split == "unequal":
        clients = unequal_partition(labels, num_clients, alpha, seed)
    else:
        clients = dirichlet_partition(labels, num_clients, alpha, seed)
    return tuple(clients)


def split_by_client(numbers: Tensor, names: Sequence[str]) -> tuple[Tensor, ...]:
    """Give each client the samples that name it; a client without samples raises a DataError.

    Args:
        numbers: The number of the client that holds each sample, int64 of shape (N,).
        names: The name of each client.

    Returns:
        For each client the ascending positions of its samples.
    """
    clients = []
    for number, name in enumerate(names):
        positions = (numbers == number).nonzero().flatten()
        if len(positions) == 0:
            raise DataError(f"client {name!r} has no training sample: remove its name")
        clients.append(positions)
    return tuple(clients)


def hold_out(
    clients: Sequence[Tensor], fraction: float, seed: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Hold out a random fraction of every client's samples.

    Every client keeps at least one sample, and at least one sample of all clients together is held
    out. Which samples a client holds out does not depend on the other clients.

    Args:
        clients: For each client the positions of its samples.
        fraction: The fraction to hold out, in (0, 1).
        seed: The seed of the random choice.

    Returns:
        For each client the ascending positions that it keeps, and the ascending positions that are
        held out by all clients together.
    """
    sizes = [len(positions) for positions in clients]
    if max(sizes) < 2:
        raise DataError(
            f"validation_fraction = {fraction} cannot be held out: none of the {len(clients)} "
            "clients has more than one sample; use fewer clients, or give validation data"
        )
    counts = [min(round(fraction * size), size - 1) for size in sizes]
    if not any(counts):
        counts[sizes.index(max(sizes))] = 1
    kept = []
    held_out = []
    for client, positions in enumerate(clients):
        generator = torch.Generator().manual_seed(derive_seed(seed, client))
        order = torch.randperm(len(positions), generator=generator)
        count = counts[client]
        held_out.append(positions[order[:count]])
        kept.append(positions[order[count:].sort().values])
    return tuple(kept), torch.cat(held_out).sort().values
