"""theta^P, the average of the clients' weights (FedAUX, Algorithm 2), over all processes."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Answer, Update
from fedaux_pl.functional.averaging import (
    State,
    average_stream,
    check_finite_average,
    check_same_layout,
    normalize_weights,
)
from fedaux_pl.models import of_head
from fedaux_pl.processes import Processes


def gather_answers(
    updates: Sequence[Update], clients: Sequence[int], processes: Processes
) -> list[Answer]:
    """Return the answers of all processes' clients in the order of S_t; some may be missing."""
    answers = processes.merge({update.client: update.answer for update in updates})
    return [answers[client] for client in clients if client in answers]


def average_updates(
    updates: Sequence[Update],
    answers: Sequence[Answer],
    theta: State,
    processes: Processes,
    head_only: bool = False,
) -> dict[str, Tensor]:
    """Average the models of one architecture by |D_i|, summing in the order of ``answers``.

    ``updates`` are those of this process's clients, ``answers`` those of all processes' clients.
    With ``head_only``, h is taken from ``theta``: its average would differ by rounding.
    """
    states = {update.client: update.state for update in updates}
    check_same_layout([theta, *states.values()])
    trained = {key: tensor for key, tensor in theta.items() if not head_only or of_head(key)}
    average = _average(states, answers, trained, processes)
    check_finite_average(average, list(states.values()))
    return {**theta, **average}


def average_payloads(
    updates: Sequence[Update], answers: Sequence[Answer], processes: Processes
) -> dict[str, Tensor]:
    """Average what clients of one architecture send besides weights, if anything."""
    payloads = {update.client: update.payload for update in updates}
    layouts = {}  # of all clients: this process may have none of the architecture
    for client, payload in payloads.items():
        layouts[client] = {key: (x.shape, x.dtype) for key, x in payload.items()}
    layouts = processes.merge(layouts)
    if not any(layouts.values()):
        return {}
    layout = layouts[answers[0].client]
    template = {
        key: torch.zeros(shape, dtype=dtype, device=processes.device)
        for key, (shape, dtype) in layout.items()
    }
    check_same_layout([template, *payloads.values()])
    return _average(payloads, answers, template, processes)


def trained_parameters(model: nn.Module, state: State) -> dict[str, Tensor]:
    """Return the entries of a state dict that require a gradient: no buffers, no fixed h."""
    # all names of a shared parameter: the last one that is loaded counts
    parameters = model.named_parameters(remove_duplicate=False)
    return {key: state[key] for key, parameter in parameters if parameter.requires_grad}


def _average(
    states: Mapping[int, State], answers: Sequence[Answer], template: State, processes: Processes
) -> dict[str, Tensor]:
    """Average the entries of ``template``, one client after another in the order of ``answers``."""
    items = processes.in_order(
        [answer.client for answer in answers],
        list(states),
        compute=lambda client: [states[client][key] for key in template],
        template=lambda _: list(template.values()),
    )
    stream = (dict(zip(template, tensors, strict=True)) for _, tensors in items)
    sizes = [answer.size for answer in answers]
    return average_stream(stream, normalize_weights(sizes, len(sizes)), template)
