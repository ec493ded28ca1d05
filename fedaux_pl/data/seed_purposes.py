"""What the seeds of a data module are for."""

from enum import IntEnum


class DataSeed(IntEnum):
    """The purpose of a seed: the part of ``derive_seed`` that separates the random choices.

    Every split and every order of batches depends on these values: never change them.
    """

    CLIENT_SPLIT = 0
    AUXILIARY_SPLIT = 1
    CLIENT_BATCHES = 2
    DISTILLATION_BATCHES = 3
    PRETRAINING_BATCHES = 4
    HELD_OUT_SAMPLES = 5
