"""Randomness as a function: every stage of a run derives its seed from what it is, not when it ran.

A seed that depends on nothing but (seed, round, client, stage) makes resuming, another order and
more processes change nothing.
"""

import numpy as np


def derive_seed(*parts: int) -> int:
    """Maps any number of non-negative integers to a seed below 2^63; other parts, other seed."""
    if any(part < 0 for part in parts) or not parts:
        raise ValueError(f"a seed is derived from one or more non-negative integers, not {parts}")
    # The number of parts goes in too: a sequence of entropy words ignores trailing zeros.
    state = np.random.SeedSequence([len(parts), *parts]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
