"""A federation: Algorithms 1 and 2, with their clients and their server."""

from fedaux_pl.federation.federation import Federation
from fedaux_pl.federation.settings import (
    Distillation,
    LocalTraining,
    Pretraining,
    RoundTraining,
    TrainingSettings,
)

__all__ = [
    "Distillation",
    "Federation",
    "LocalTraining",
    "Pretraining",
    "RoundTraining",
    "TrainingSettings",
]
