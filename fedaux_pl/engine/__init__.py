"""How a stage of training or prediction runs under the outer Trainer."""

from fedaux_pl.engine.checkpoints import AtomicCheckpointIO
from fedaux_pl.engine.inference import evaluating, predict_features, predict_logits
from fedaux_pl.engine.seeds import SeedPurpose, isolated_rng
from fedaux_pl.engine.stage import Job, StageResult, StageRunner
from fedaux_pl.engine.strategy import ClientParallel

__all__ = [
    "AtomicCheckpointIO",
    "ClientParallel",
    "Job",
    "SeedPurpose",
    "StageResult",
    "StageRunner",
    "evaluating",
    "isolated_rng",
    "predict_features",
    "predict_logits",
]
