"""LightningModules that run alone under an ordinary Trainer, with batches of any data loader."""

from fedaux_pl.modules.client import ClientModule as ClientModule
from fedaux_pl.modules.distillation import DistillationModule as DistillationModule
from fedaux_pl.modules.feature_distillation import FeatureDistillation as FeatureDistillation
from fedaux_pl.modules.language_modeling import LanguageModeling as LanguageModeling
from fedaux_pl.modules.optimizers import OptimizerSettings as OptimizerSettings
from fedaux_pl.modules.scoring_head import ScoringHead as ScoringHead
from fedaux_pl.modules.self_supervised import KNNAccuracy as KNNAccuracy
from fedaux_pl.modules.self_supervised import SelfSupervised as SelfSupervised
from fedaux_pl.modules.simclr import SimCLR as SimCLR
