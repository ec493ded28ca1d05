"""The paper's mathematics: pure functions of tensors, one for each equation."""

from fedaux_pl.functional.averaging import average_states
from fedaux_pl.functional.class_means import discriminant_directions, pool_class_means
from fedaux_pl.functional.linear_head import fit_linear_head
from fedaux_pl.functional.losses import distillation_loss, nt_xent_loss, proximal_penalty
from fedaux_pl.functional.packed_logits import pack_logits, unpack_logits
from fedaux_pl.functional.partition import dirichlet_partition
from fedaux_pl.functional.posterior import bayesian_ensemble, sample_posterior
from fedaux_pl.functional.privacy import (
    bounded_rows,
    clip_rows,
    gaussian_epsilon,
    gaussian_sigma,
    scoring_sensitivity,
    softmax_sensitivity,
)
from fedaux_pl.functional.scoring_head_fit import certainty_scores, fit_scoring_head
from fedaux_pl.functional.seeds import derive_seed
from fedaux_pl.functional.selection import sample_clients
from fedaux_pl.functional.shrinkage import shrink_to_mean
from fedaux_pl.functional.soft_labels import SoftLabelSum, soft_labels, standardized_labels
from fedaux_pl.functional.softmax_head_fit import fit_softmax_head

__all__ = [
    "SoftLabelSum",
    "average_states",
    "bayesian_ensemble",
    "bounded_rows",
    "certainty_scores",
    "clip_rows",
    "derive_seed",
    "dirichlet_partition",
    "discriminant_directions",
    "distillation_loss",
    "fit_linear_head",
    "fit_scoring_head",
    "fit_softmax_head",
    "gaussian_epsilon",
    "gaussian_sigma",
    "nt_xent_loss",
    "pack_logits",
    "pool_class_means",
    "proximal_penalty",
    "sample_clients",
    "sample_posterior",
    "scoring_sensitivity",
    "shrink_to_mean",
    "soft_labels",
    "softmax_sensitivity",
    "standardized_labels",
    "unpack_logits",
]
