"""Seeds as functions of what is random, not of when it runs.

A seed that depends only on (seed, round, client, stage) makes results independent of resuming, of
the order of clients and of the number of processes.
"""

import numpy as np


def derive_seed(*parts: int) -> int:
    """Map one or more non-negative integers to a seed below 2^63.

    Examples:
        >>> derive_seed(0, 1)
        7006255215521402662
    """
    if any(part < 0 for part in parts) or not parts:
        raise ValueError(f"a seed is derived from one or more non-negative integers, not {parts}")
    # With the number of parts, because SeedSequence ignores trailing zeros.
    state = np.random.SeedSequence([len(parts), *parts]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
