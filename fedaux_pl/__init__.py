"""Federated learning with unlabeled auxiliary data (FedAUX) on PyTorch Lightning.

The names below are imported on first use: ``import fedaux_pl`` and ``fedaux-pl --version`` do not
import torch.

Examples:
    >>> from fedaux_pl import create_model
    >>> create_model("resnet8", num_classes=10, width=0.125).feature_dim
    64
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaux_pl._version import __version__

if TYPE_CHECKING:
    from fedaux_pl.algorithms import *  # noqa: F403
    from fedaux_pl.callbacks import *  # noqa: F403
    from fedaux_pl.data import *  # noqa: F403
    from fedaux_pl.federation import *  # noqa: F403
    from fedaux_pl.models import *  # noqa: F403
    from fedaux_pl.modules import *  # noqa: F403
    from fedaux_pl.scoring import *  # noqa: F403

_NAMES = {
    "algorithms": "Algorithm Centralized FedAUX FedAUXfdp FedAdam FedAvg FedAvgM FedBE "
    "FedBN FedCOF FedClassMeans FedDF FedProx Scaffold",
    "callbacks": "BestCheckpoint FederationCallback",
    "data": "AGNews AmazonReviews BookCorpus CIFAR10 CIFAR100 Digits FederatedDataModule Glosses "
    "ImageFolder ImageNet32 ImageNetSubset InMemory NpzImages STL10 SVHN Source TextDraw TextFiles "
    "TextLayout ViewSettings",
    "federation": "Distillation Federation LocalTraining Pretraining",
    "models": "create_model load_backbone load_exported register save_backbone",
    "modules": "ClientModule DistillationModule FeatureDistillation KNNAccuracy LanguageModeling "
    "OptimizerSettings ScoringHead SimCLR",
    "scoring": "MeanScoring PaperScoring Privacy Scorer ScoringRecipe SecureSums StatisticsScoring",
}
_ROOMS = {name: room for room, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"fedaux_pl.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} in version {__version__}")


def __dir__() -> list[str]:
    return sorted(__all__)
