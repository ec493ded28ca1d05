"""The methods, one file each."""

from fedaux_pl.algorithms.base import Aggregate as Aggregate
from fedaux_pl.algorithms.base import Algorithm as Algorithm
from fedaux_pl.algorithms.base import Answer as Answer
from fedaux_pl.algorithms.base import Blend as Blend
from fedaux_pl.algorithms.base import Blended as Blended
from fedaux_pl.algorithms.base import Distilled as Distilled
from fedaux_pl.algorithms.base import Ensemble as Ensemble
from fedaux_pl.algorithms.base import LocalResult as LocalResult
from fedaux_pl.algorithms.base import Released as Released
from fedaux_pl.algorithms.base import Round as Round
from fedaux_pl.algorithms.base import ServerState as ServerState
from fedaux_pl.algorithms.base import Update as Update
from fedaux_pl.algorithms.centralized import Centralized as Centralized
from fedaux_pl.algorithms.fedadam import FedAdam as FedAdam
from fedaux_pl.algorithms.fedaux import FedAUX as FedAUX
from fedaux_pl.algorithms.fedauxfdp import FedAUXfdp as FedAUXfdp
from fedaux_pl.algorithms.fedavg import FedAvg as FedAvg
from fedaux_pl.algorithms.fedavgm import FedAvgM as FedAvgM
from fedaux_pl.algorithms.fedbe import FedBE as FedBE
from fedaux_pl.algorithms.fedbn import FedBN as FedBN
from fedaux_pl.algorithms.fedclassmeans import FedClassMeans as FedClassMeans
from fedaux_pl.algorithms.feddf import FedDF as FedDF
from fedaux_pl.algorithms.fedprox import FedProx as FedProx
from fedaux_pl.algorithms.memory import TeacherMemory as TeacherMemory
from fedaux_pl.algorithms.one_release import OneRelease as OneRelease
from fedaux_pl.algorithms.scaffold import Scaffold as Scaffold
