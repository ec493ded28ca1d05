"""The methods, one file each."""

from fedaux_pl.algorithms.base import Algorithm, Answer, Ensemble, Round, Update
from fedaux_pl.algorithms.fedaux import FedAUX
from fedaux_pl.algorithms.fedavg import FedAvg
from fedaux_pl.algorithms.fedbe import FedBE
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.algorithms.fedprox import FedProx
from fedaux_pl.algorithms.memory import TeacherMemory

__all__ = [
    "Algorithm",
    "Answer",
    "Ensemble",
    "FedAUX",
    "FedAvg",
    "FedBE",
    "FedDF",
    "FedProx",
    "Round",
    "TeacherMemory",
    "Update",
]
