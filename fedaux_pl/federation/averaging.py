"""theta^P, the average of the clients' weights (FedAUX, Algorithm 2), over all processes."""

from collections.abc import Iterator, Mapping, Sequence

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
        size_of = {answer.client: answer.size for answer in answers if answer.architecture == name}
        own = {update.client: update.state for update in updates if update.architecture == name}
        check_same_layout([states[name], *own.values()])
        trained = {k: v for k, v in states[name].items() if not head_only or of_head(k)}
        average = average_stream(
            _states_in_order(list(size_of), own, trained, processes),
            normalize_weights(list(size_of.values()), len(size_of)),
            trained,
        )
        check_finite_average(average, list(own.values()))
        averages[name] = {**states[name], **average}
    return averages


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
