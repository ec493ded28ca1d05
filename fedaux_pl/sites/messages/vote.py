"""The request ``vote`` and its answer: a site votes on models between average and distilled one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import Message, expect, join_states

MAX_CANDIDATES = 16


def write_request(
    round_: int,
    averages: Mapping[str, State],
    distilled: Mapping[str, State],
    weights: Sequence[float],
) -> Message:
    """Write the request to all sites; the candidates have these weights of the distilled model."""
    states = {"average": join_states(averages), "distilled": join_states(distilled)}
    template = {name: torch.empty(len(weights), dtype=torch.double) for name in distilled}
    fields = {"round": round_, "weights": list(weights)}
    return Message(fields, wire.write_tensors(join_states(states)), template)


def read_weights(request: Message) -> list[float]:
    """Read the weights of the distilled model in the candidates, from 0 to 1."""
    weights = request.fields.get("weights")
    if not isinstance(weights, list):
        weights = []
    expect(
        0 < len(weights) <= MAX_CANDIDATES,
        f"it has {len(weights)} candidates, but must have 1 to {MAX_CANDIDATES}",
    )
    return [float(wire.read_number({"weight": weight}, "weight", 0, 1)) for weight in weights]


def read_answer(answer: Message, template: State) -> dict[str, Tensor]:
    """Read the sums of a site for each candidate, by architecture."""
    return wire.read_tensors(answer.body, template)
