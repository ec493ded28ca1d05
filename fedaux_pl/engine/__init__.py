"""How a stage of training or prediction runs under the outer Trainer."""

from fedaux_pl.engine.checkpoints import AtomicCheckpointIO as AtomicCheckpointIO
from fedaux_pl.engine.inference import evaluating as evaluating
from fedaux_pl.engine.inference import predict_features as predict_features
from fedaux_pl.engine.inference import predict_logits as predict_logits
from fedaux_pl.engine.seeds import SeedPurpose as SeedPurpose
from fedaux_pl.engine.seeds import isolated_rng as isolated_rng
from fedaux_pl.engine.stage import Job as Job
from fedaux_pl.engine.stage import StageResult as StageResult
from fedaux_pl.engine.stage import StageRunner as StageRunner
from fedaux_pl.engine.strategy import ClientParallel as ClientParallel
