"""Released heads as tensors: for messages of sites, ledgers, caches and checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaux_pl.scoring.noise import round_to_grid
from fedaux_pl.scoring.public_map import PublicMap
from fedaux_pl.scoring.released_head import ReleasedHead
from fedaux_pl.scoring.step import Step

_NOT_ROUNDED = (
    "version 0.6.0 or earlier did not round it, and its last bits reveal the vector before noise"
)


def pack(heads: Sequence[ReleasedHead]) -> dict[str, Tensor]:
    """Convert released heads to tensors, which ``unpack`` reads.

    The names of the tensors are part of stored files: do not change them. The public map is stored
    with the vectors, because a map that is fitted again on another machine may have directions that
    are rotated by rounding errors. The clients of one architecture share the tensors of the map, so
    that a file contains them once.
    """
    numbers = []
    for head in heads:
        release = head.release
        numbers.append(
            [head.public_map.bound, release.sigma, release.sensitivity, release.simulated]
        )
    packed = {"numbers": torch.tensor(numbers, dtype=torch.float64)}
    clients = [head.client for head in heads]
    if clients != list(range(len(heads))):  # some sites have released nothing yet
        packed["clients"] = torch.tensor(clients)
    for head in heads:
        packed[f"weight/{head.client}"] = head.weight.cpu()
        if head.members:
            packed[f"members/{head.client}"] = torch.tensor(head.members)
        for name, tensor in head.public_map.tensors().items():
            packed[f"{name}/{head.client}"] = tensor
    return packed


def unpack(tensors: Mapping[str, Tensor], step: Step) -> list[ReleasedHead]:
    """Convert the tensors of ``pack`` to released heads; ``step`` is the step of their release."""
    heads = []
    unit = step.scoring.norm_bound == "unit"
    maps: dict[tuple[float, int, int], PublicMap] = {}  # clients with the same map share one object
    numbers = tensors["numbers"].tolist()
    clients = tensors["clients"].tolist() if "clients" in tensors else range(len(numbers))
    for client, (bound, sigma, sensitivity, simulated) in zip(clients, numbers, strict=True):
        weight = tensors[f"weight/{client}"]
        center = tensors.get(f"center/{client}")
        directions = tensors.get(f"directions/{client}")
        map_key = (bound, id(center), id(directions))
        if map_key not in maps:
            maps[map_key] = PublicMap(center, directions, unit, bound)
        members = tuple(map(int, tensors.get(f"members/{client}", ())))
        cost = step.cost(sensitivity, bool(simulated), summands=len(members) or 1)
        release = replace(cost, sigma=sigma)
        # A secure sum consists of integers, which need no rounding to a grid.
        is_rounded = bool(members) or torch.equal(round_to_grid(weight, sigma), weight)
        if release.is_private and not is_rounded:
            release = replace(release, flaw=_NOT_ROUNDED)
        heads.append(ReleasedHead(client, weight, maps[map_key], release, members))
    return heads
