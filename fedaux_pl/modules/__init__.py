"""LightningModules that stand alone: each runs under an ordinary Trainer on ordinary batches."""

from fedaux_pl.modules.client import ClientModule
from fedaux_pl.modules.distillation import DistillationModule
from fedaux_pl.modules.knn import KNNAccuracy
from fedaux_pl.modules.language import LanguageModelling
from fedaux_pl.modules.pretraining import create_pretraining
from fedaux_pl.modules.scoring import ScoringHead
from fedaux_pl.modules.selfsupervised import SelfSupervised
from fedaux_pl.modules.simclr import SimCLR

__all__ = [
    "ClientModule",
    "DistillationModule",
    "KNNAccuracy",
    "LanguageModelling",
    "ScoringHead",
    "SelfSupervised",
    "SimCLR",
    "create_pretraining",
]
