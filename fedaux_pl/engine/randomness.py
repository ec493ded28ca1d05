"""Randomness that a stage starts from its own seed and leaves as it found it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Runs a block with torch's generators seeded, and restores them afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
