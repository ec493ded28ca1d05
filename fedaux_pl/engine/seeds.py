"""Seeds: their purposes, and blocks of code that run with a given one."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import torch


class SeedPurpose(IntEnum):
    """What a seed is for: the part of ``derive_seed`` that separates the stages of a run.

    The values are part of every result: another value means other random numbers.
    (``FederatedDataModule`` uses 0 to 4.)
    """

    CLIENT_TRAINING = 10
    RELEASE_NOISE = 11
    INITIALIZATION = 20
    CLIENT_SELECTION = 21
    DISTILLATION = 22
    ENSEMBLE = 23
    PRETRAINING = 30


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Run a block with PyTorch's generators seeded, and restore their states afterwards."""
    # Only the current GPU's: reading the others' would allocate memory on every GPU of the node.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
