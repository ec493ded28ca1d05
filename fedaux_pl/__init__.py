"""Federated learning with unlabeled auxiliary data (FedAUX) on PyTorch Lightning.

The names below are imported on first use: ``import fedaux_pl`` and ``fedaux-pl --version`` do not
import torch.

Example:
    >>> from fedaux_pl import create_model
    >>> create_model("resnet8", num_classes=10, width=0.125).feature_dim
    64
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaux_pl._version import __version__

if TYPE_CHECKING:
    from fedaux_pl.algorithms import Algorithm as Algorithm
    from fedaux_pl.algorithms import Centralised as Centralised
    from fedaux_pl.algorithms import FedAdam as FedAdam
    from fedaux_pl.algorithms import FedAUX as FedAUX
    from fedaux_pl.algorithms import FedAUXfdp as FedAUXfdp
    from fedaux_pl.algorithms import FedAvg as FedAvg
    from fedaux_pl.algorithms import FedAvgM as FedAvgM
    from fedaux_pl.algorithms import FedBE as FedBE
    from fedaux_pl.algorithms import FedClassMeans as FedClassMeans
    from fedaux_pl.algorithms import FedDF as FedDF
    from fedaux_pl.algorithms import FedProx as FedProx
    from fedaux_pl.algorithms import Scaffold as Scaffold
    from fedaux_pl.data import AuxiliaryDataModule as AuxiliaryDataModule
    from fedaux_pl.data import FederatedDataModule as FederatedDataModule
    from fedaux_pl.federation import Federation as Federation
    from fedaux_pl.models import create_model as create_model
    from fedaux_pl.models import load_backbone as load_backbone
    from fedaux_pl.models import load_exported as load_exported
    from fedaux_pl.models import save_backbone as save_backbone
    from fedaux_pl.modules import ClientModule as ClientModule
    from fedaux_pl.modules import DistillationModule as DistillationModule
    from fedaux_pl.modules import KNNAccuracy as KNNAccuracy
    from fedaux_pl.modules import LanguageModelling as LanguageModelling
    from fedaux_pl.modules import ScoringHead as ScoringHead
    from fedaux_pl.modules import SimCLR as SimCLR

_MODULES = {
    "Algorithm": "fedaux_pl.algorithms",
    "FedAUX": "fedaux_pl.algorithms",
    "FedAUXfdp": "fedaux_pl.algorithms",
    "FedAvg": "fedaux_pl.algorithms",
    "FedBE": "fedaux_pl.algorithms",
    "FedClassMeans": "fedaux_pl.algorithms",
    "FedDF": "fedaux_pl.algorithms",
    "FedProx": "fedaux_pl.algorithms",
    "FedAdam": "fedaux_pl.algorithms",
    "FedAvgM": "fedaux_pl.algorithms",
    "Scaffold": "fedaux_pl.algorithms",
    "Centralised": "fedaux_pl.algorithms",
    "AuxiliaryDataModule": "fedaux_pl.data",
    "FederatedDataModule": "fedaux_pl.data",
    "Federation": "fedaux_pl.federation",
    "create_model": "fedaux_pl.models",
    "load_backbone": "fedaux_pl.models",
    "load_exported": "fedaux_pl.models",
    "save_backbone": "fedaux_pl.models",
    "ClientModule": "fedaux_pl.modules",
    "DistillationModule": "fedaux_pl.modules",
    "KNNAccuracy": "fedaux_pl.modules",
    "LanguageModelling": "fedaux_pl.modules",
    "ScoringHead": "fedaux_pl.modules",
    "SimCLR": "fedaux_pl.modules",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
