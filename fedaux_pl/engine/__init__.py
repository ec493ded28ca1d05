"""How a stage of training is run, and by whom."""

from fedaux_pl.engine.checkpoints import AtomicCheckpointIO
from fedaux_pl.engine.clients import ClientPool, LocalClients
from fedaux_pl.engine.inference import (
    batch_statistics,
    evaluating,
    predict_features,
    predict_logits,
)
from fedaux_pl.engine.parallel import ClientParallel
from fedaux_pl.engine.randomness import isolated_rng
from fedaux_pl.engine.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.engine.stage import Job, StageResult, StageRunner

__all__ = [
    "AtomicCheckpointIO",
    "ClientParallel",
    "ClientPool",
    "Distillation",
    "Job",
    "LocalClients",
    "LocalTraining",
    "Pretraining",
    "StageResult",
    "StageRunner",
    "batch_statistics",
    "evaluating",
    "isolated_rng",
    "predict_features",
    "predict_logits",
]
