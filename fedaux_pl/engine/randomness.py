"""Randomness that a stage starts from its own seed and leaves as it found it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Runs a block with torch's generators seeded, and restores them afterwards."""
    # only this process's: asking the others would take memory on every GPU of the node
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
