"""The clients that take part in a round: S_t of Algorithm 2."""

import numpy as np


def sample_clients(num_clients: int, participation: float, seed: int) -> list[int]:
    """Draw the ids of max(1, round(C n)) of n clients without replacement, in ascending order.

    Args:
        num_clients: n, at least 1.
        participation: C, in (0, 1].
        seed: The draw is a function of it.

    Examples:
        >>> sample_clients(num_clients=20, participation=0.4, seed=3)
        [1, 2, 3, 10, 11, 14, 16, 18]
    """
    if num_clients < 1:
        raise ValueError(f"there must be at least 1 client, but num_clients is {num_clients}")
    if not 0 < participation <= 1:
        raise ValueError(f"participation must lie in (0, 1], but is {participation}")
    count = max(1, round(participation * num_clients))
    drawn = np.random.default_rng(seed).choice(num_clients, size=count, replace=False)
    return sorted(int(client) for client in drawn)
