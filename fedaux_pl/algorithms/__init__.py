"""The methods, one file each."""

from fedaux_pl.algorithms.base import Algorithm, Answer, Ensemble, Round, Update
from fedaux_pl.algorithms.centralised import Centralised
from fedaux_pl.algorithms.fedadam import FedAdam
from fedaux_pl.algorithms.fedaux import FedAUX
from fedaux_pl.algorithms.fedavg import FedAvg
from fedaux_pl.algorithms.fedavgm import FedAvgM
from fedaux_pl.algorithms.fedbe import FedBE
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.algorithms.fedprox import FedProx
from fedaux_pl.algorithms.memory import TeacherMemory
from fedaux_pl.algorithms.scaffold import Scaffold
from fedaux_pl.algorithms.steps import Aggregate, LocalResult, ServerState

__all__ = [
    "Aggregate",
    "Algorithm",
    "Answer",
    "Centralised",
    "Ensemble",
    "FedAUX",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedDF",
    "FedProx",
    "LocalResult",
    "Round",
    "Scaffold",
    "ServerState",
    "TeacherMemory",
    "Update",
]
