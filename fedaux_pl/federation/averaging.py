"""theta^P, the average of the clients' weights (FedAUX, Algorithm 2), over all processes."""

from collections.abc import Iterator, Mapping, Sequence

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
    """The answers of the clients of all processes, in the order of ``clients``.

    Args:
        updates: The updates of this process's clients.
        clients: S_t, the selected clients; one may have failed to answer.
        processes: The processes that share the clients.
    """
    answers = processes.merge({update.client: update.answer for update in updates})
    return [answers[client] for client in clients if client in answers]


def average_updates(
    updates: Sequence[Update],
    answers: Sequence[Answer],
    states: Mapping[str, State],
    processes: Processes,
    head_only: bool = False,
) -> dict[str, State]:
    """Averages by |D_i| within each architecture, summing in the order of ``answers``.

    Args:
        updates: The updates of this process's clients.
        answers: The answers of the clients of all processes.
        states: The server's model of each architecture.
        processes: The processes that share the clients.
        head_only: Whether g alone is trained. Then h is taken from ``states``: it is the same
            everywhere, and its average would differ by rounding.

    Returns:
        theta^P of every architecture, the same in every process; the server's model where an
        architecture has no client in the round.
    """
    averages = dict(states)
    for name in dict.fromkeys(answer.architecture for answer in answers):
        own = {update.client: update.state for update in updates if update.architecture == name}
        check_same_layout([states[name], *own.values()])
        trained = {k: v for k, v in states[name].items() if not head_only or of_head(k)}
        average = _average(own, _of(name, answers), trained, processes)
        check_finite_average(average, list(own.values()))
        averages[name] = {**states[name], **average}
    return averages


def average_payloads(
    updates: Sequence[Update], answers: Sequence[Answer], processes: Processes
) -> dict[str, State]:
    """Averages what clients send besides their weights as ``average_updates`` does the weights.

    Args:
        updates: The updates of this process's clients.
        answers: The answers of the clients of all processes.
        processes: The processes that share the clients.

    Returns:
        The average of every architecture with a client in the round, the same in every process.

    Raises:
        ValueError: If two clients of an architecture send other names, shapes or dtypes.
    """
    layouts = processes.merge(
        {u.client: {k: (tuple(v.shape), v.dtype) for k, v in u.payload.items()} for u in updates}
    )
    averages: dict[str, State] = {}
    for name in dict.fromkeys(answer.architecture for answer in answers):
        answering = _of(name, answers)
        own = {update.client: update.payload for update in updates if update.architecture == name}
        template = {  # of no client: this process may have none of the architecture
            key: torch.zeros(shape, dtype=dtype, device=processes.device)
            for key, (shape, dtype) in layouts[answering[0].client].items()
        }
        check_same_layout([template, *own.values()])
        averages[name] = _average(own, answering, template, processes)
    return averages


def trained_parameters(model: nn.Module, state: State) -> dict[str, Tensor]:
    """The entries of a state dict that gradients change: no buffers, and no h that is not trained.

    Args:
        model: The model, whose trained parameters require a gradient.
        state: A state dict of the model.
    """
    # all names of a shared parameter: the last one that is loaded counts
    parameters = model.named_parameters(remove_duplicate=False)
    return {key: state[key] for key, parameter in parameters if parameter.requires_grad}


def _of(architecture: str, answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.architecture == architecture]


def _average(
    own: Mapping[int, State], answers: Sequence[Answer], template: State, processes: Processes
) -> dict[str, Tensor]:
    """The average of the entries of ``template``, in the order of ``answers``."""
    clients, sizes = [a.client for a in answers], [a.size for a in answers]
    states = _states_in_order(clients, own, template, processes)
    return average_stream(states, normalize_weights(sizes, len(sizes)), template)


def _states_in_order(
    clients: Sequence[int], own: Mapping[int, State], template: State, processes: Processes
) -> Iterator[State]:
    """The entries of ``template`` in the clients' state dicts, one client after another."""
    items = processes.in_order(
        clients,
        list(own),
        compute=lambda client: [own[client][key] for key in template],
        like=lambda _: list(template.values()),
    )
    for _, tensors in items:
        yield dict(zip(template, tensors, strict=True))
