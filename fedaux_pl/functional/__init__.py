"""The paper's mathematics: pure functions on tensors, each with its equation."""

from fedaux_pl.functional.averaging import average_states
from fedaux_pl.functional.contrastive import nt_xent_loss
from fedaux_pl.functional.distillation import (
    SoftLabelSum,
    distillation_loss,
    soft_labels,
)
from fedaux_pl.functional.ledger import spent
from fedaux_pl.functional.partition import dirichlet_partition
from fedaux_pl.functional.posterior import bayesian_ensemble, sample_posterior
from fedaux_pl.functional.privacy import (
    bounded_rows,
    clip_rows,
    gaussian_sigma,
    scoring_sensitivity,
)
from fedaux_pl.functional.proximal import proximal_penalty
from fedaux_pl.functional.release import Release, gaussian_release, release_without_noise
from fedaux_pl.functional.scoring import certainty_scores, fit_scoring_head, fit_scoring_heads
from fedaux_pl.functional.seeds import derive_seed
from fedaux_pl.functional.selection import sample_clients
from fedaux_pl.functional.shrinkage import shrink_to_mean

__all__ = [
    "Release",
    "SoftLabelSum",
    "average_states",
    "bayesian_ensemble",
    "bounded_rows",
    "certainty_scores",
    "clip_rows",
    "derive_seed",
    "dirichlet_partition",
    "distillation_loss",
    "fit_scoring_head",
    "fit_scoring_heads",
    "gaussian_release",
    "gaussian_sigma",
    "nt_xent_loss",
    "proximal_penalty",
    "release_without_noise",
    "sample_clients",
    "sample_posterior",
    "scoring_sensitivity",
    "shrink_to_mean",
    "soft_labels",
    "spent",
]
