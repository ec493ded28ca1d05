"""theta^P, the average of the clients' weights (FedAUX, Algorithm 2), over all processes."""

from collections.abc import Mapping, Sequence

from fedaux_pl.algorithms import Answer, Update
from fedaux_pl.functional.averaging import State, normalize_weights, state_from_sum, sum_states
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
    """Averages by |D_i| within each architecture, by one reduction over the processes.

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
    sizes: dict[str, dict[int, int]] = {}
    for answer in answers:
        sizes.setdefault(answer.architecture, {})[answer.client] = answer.size
    sums = {}
    for name, size_of in sizes.items():
        weights = normalize_weights(list(size_of.values()), len(size_of))
        weight_of = dict(zip(size_of, weights, strict=True))
        own = [update for update in updates if update.architecture == name]
        own_weights = [weight_of[update.client] for update in own]
        sums[name] = sum_states([update.state for update in own], own_weights, states[name])
    flat = iter(processes.sum([tensor for total in sums.values() for tensor in total.values()]))
    averages = dict(states)
    for name, total in sums.items():
        average = state_from_sum({key: next(flat) for key in total}, states[name])
        trained = {k: v for k, v in average.items() if not head_only or of_head(k)}
        averages[name] = {**states[name], **trained}
    return averages
