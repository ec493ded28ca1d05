"""Seeds as functions of (seed, round, client, stage), not of when something runs.

So results do not depend on resuming, the order of clients or the number of processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedaux_pl.errors import check_setting


def derive_seed(*parts: int) -> int:
    """Map one or more non-negative integers to a seed below 2^63.

    Examples:
        >>> derive_seed(0, 1)
        7006255215521402662
    """
    is_valid = bool(parts) and min(parts) >= 0
    check_setting("the parts of a seed", parts, is_valid, "be one or more non-negative integers")
    # With the number of parts, because SeedSequence ignores trailing zeros.
    state = np.random.SeedSequence([len(parts), *parts]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Run a block with PyTorch's generators seeded, and restore their states afterwards."""
    # Only the current GPU's: reading the others' would allocate memory on every GPU of the node.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def sample_clients(num_clients: int, participation: float, seed: int) -> list[int]:
    """Draw S_t: the ids of max(1, round(C n)) of n clients without replacement, in order.

    Examples:
        >>> sample_clients(num_clients=20, participation=0.4, seed=3)
        [1, 2, 3, 10, 11, 14, 16, 18]
    """
    check_setting("num_clients", num_clients, num_clients >= 1, "be at least 1")
    check_setting("participation", participation, 0 < participation <= 1, "lie in (0, 1]")
    count = max(1, round(participation * num_clients))
    rng = np.random.default_rng(seed)
    drawn = rng.choice(num_clients, size=count, replace=False)
    return sorted(drawn.tolist())
