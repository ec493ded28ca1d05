"""Seeds as functions of what is random, not of when it runs.

A seed that depends only on (seed, round, client, stage) makes results independent of resuming, of
the order of clients and of the number of processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Run a block with PyTorch's generators seeded, and restore their states afterwards."""
    # Only the current GPU's: reading the others' would allocate memory on every GPU of the node.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
