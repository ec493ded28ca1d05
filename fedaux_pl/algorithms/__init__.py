"""The methods, one file each."""

from fedaux_pl.algorithms.base import Algorithm, Answer, Ensemble, Round, Update
from fedaux_pl.algorithms.centralized import Centralized
from fedaux_pl.algorithms.fedadam import FedAdam
from fedaux_pl.algorithms.fedaux import FedAUX
from fedaux_pl.algorithms.fedauxfdp import FedAUXfdp
from fedaux_pl.algorithms.fedavg import FedAvg
from fedaux_pl.algorithms.fedavgm import FedAvgM
from fedaux_pl.algorithms.fedbe import FedBE
from fedaux_pl.algorithms.fedclassmeans import FedClassMeans
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.algorithms.fedprox import FedProx
from fedaux_pl.algorithms.memory import TeacherMemory
from fedaux_pl.algorithms.one_release import OneRelease
from fedaux_pl.algorithms.scaffold import Scaffold
from fedaux_pl.algorithms.steps import Aggregate, LocalResult, Released, ServerState

__all__ = [
    "Aggregate",
    "Algorithm",
    "Answer",
    "Centralized",
    "Ensemble",
    "FedAUX",
    "FedAUXfdp",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedClassMeans",
    "FedDF",
    "FedProx",
    "LocalResult",
    "OneRelease",
    "Released",
    "Round",
    "Scaffold",
    "ServerState",
    "TeacherMemory",
    "Update",
]
