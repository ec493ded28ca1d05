"""The request ``train`` and its answer: a site trains the server's model (Algorithm 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.algorithms import Update
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import of_head
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import Message

SENT_SETTINGS = ("epochs", "batch_size")
"""The settings of the local training that a request states, within the limits of the site.

Server and sites need not agree on them before the run.
"""

_LARGEST_LOSS = 1e30


@dataclass(frozen=True)
class TrainRequest:
    """The numbers of a request; its model is read by ``ReceivedModels``."""

    round: int
    epochs: int
    batch_size: int


def write_request(
    round_: int, epochs: int, batch_size: int, state: State, head_only: bool
) -> Message:
    """Write the request to the sites of one architecture; ``state`` is theta^P.

    With ``head_only`` the answer has only the weights of the head.
    """
    fields = {"round": round_, "epochs": epochs, "batch_size": batch_size}
    return Message(fields, wire.write_tensors(state), _sent_weights(state, head_only))


def read_request(request: Message) -> TrainRequest:
    """Read the numbers of the request."""
    return TrainRequest(
        round=wire.read_count(request.fields, "round"),
        epochs=wire.read_count(request.fields, "epochs"),
        batch_size=wire.read_count(request.fields, "batch_size"),
    )


def write_answer(update: Update, size: int, head_only: bool) -> tuple[dict[str, Any], bytes]:
    """Write the plain values and the tensors of the answer; ``size`` is |D_i|."""
    weights = _sent_weights(update.state, head_only)
    return {"size": size, "loss": update.loss}, wire.write_tensors(weights)


def read_answer(
    answer: Message,
    client: int,
    architecture: str,
    start: Mapping[str, Tensor],
    device: torch.device,
    head_only: bool,
) -> Update:
    """Read the update of a client; ``start`` is theta^P, from which it has trained."""
    weights = wire.read_tensors(answer.body, _sent_weights(start, head_only), device)
    size = wire.read_size(answer)
    loss = float(wire.read_number(answer.fields, "loss", -_LARGEST_LOSS, _LARGEST_LOSS))
    return Update(client, architecture, size, loss, {**start, **weights})


def _sent_weights(state: State, head_only: bool) -> State:
    return {name: tensor for name, tensor in state.items() if not head_only or of_head(name)}
