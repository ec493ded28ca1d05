"""LightningModules that run alone under an ordinary Trainer, with batches of any data loader."""

from fedaux_pl.modules.client import ClientModule
from fedaux_pl.modules.distillation import DistillationModule
from fedaux_pl.modules.language_modeling import LanguageModeling
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.scoring_head import ScoringHead
from fedaux_pl.modules.self_supervised import KNNAccuracy, SelfSupervised
from fedaux_pl.modules.simclr import SimCLR

__all__ = [
    "ClientModule",
    "DistillationModule",
    "KNNAccuracy",
    "LanguageModeling",
    "OptimizerSettings",
    "ScoringHead",
    "SelfSupervised",
    "SimCLR",
]
