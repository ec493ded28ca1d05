"""theta^P of all processes' clients (FedAUX, Algorithm 2)."""

from collections.abc import Mapping, Sequence

from fedaux_pl.algorithms import Update
from fedaux_pl.functional.averaging import State, from_sum, normalized_weights, sum_states
from fedaux_pl.processes import Processes


def average_updates(
    updates: Sequence[Update],
    sizes: Mapping[str, Mapping[int, int]],
    states: Mapping[str, State],
    processes: Processes,
) -> dict[str, State]:
    """Averages by |D_i| within each architecture, by one reduction over the processes.

    Args:
        updates: What the clients of this process sent.
        sizes: For each architecture that anybody trained, |D_i| of every client who did.
        states: The server's model of each architecture.
        processes: Those that share the clients.

    Returns:
        theta^P of each architecture in ``sizes``, the same in every process.
    """
    sums = {}
    for name, held in sizes.items():
        weights = normalized_weights(list(held.values()), len(held))
        shares = dict(zip(held, weights, strict=True))
        own = [update for update in updates if update.architecture == name]
        own_shares = [shares[update.client] for update in own]
        sums[name] = sum_states([update.state for update in own], own_shares, states[name])
    flat = iter(processes.sum([tensor for total in sums.values() for tensor in total.values()]))
    joined = {name: {key: next(flat) for key in total} for name, total in sums.items()}
    return {name: from_sum(total, states[name]) for name, total in joined.items()}
