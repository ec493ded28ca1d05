"""Seeds: their purposes, and blocks of code that run with a given one."""

from enum import IntEnum

from fedaux_pl.functional.seeds import isolated_rng as isolated_rng


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
    FINE_TUNING = 24
    PRETRAINING = 30
