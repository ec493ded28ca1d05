"""The paper's mathematics: pure functions of tensors, one for each equation."""

from fedaux_pl.functional.averaging import average_states
from fedaux_pl.functional.blending import blend_states, clipped_log_likelihood, most_votes
from fedaux_pl.functional.class_statistics import (
    class_priors,
    pool_class_means,
    shrink_to_mean,
    split_statistics,
    statistics_sensitivity,
    sum_statistics,
)
from fedaux_pl.functional.discrete_gaussian import discrete_gaussian, noise_of_sum
from fedaux_pl.functional.discriminant import LinearClassifier, linear_discriminant
from fedaux_pl.functional.head_fits import fit_linear_head, fit_scoring_head, fit_softmax_head
from fedaux_pl.functional.integer_statistics import (
    decode_residuals,
    decode_statistics,
    encode_rows,
    integer_weights,
    most_records,
    residuals_unit,
    statistics_unit,
    sum_integer_residuals,
    sum_integers,
)
from fedaux_pl.functional.losses import (
    balanced_weights,
    distillation_loss,
    nt_xent_loss,
    proximal_penalty,
)
from fedaux_pl.functional.newton_step import newton_step, sum_residuals
from fedaux_pl.functional.partition import (
    dirichlet_partition,
    shard_partition,
    unequal_partition,
)
from fedaux_pl.functional.posterior import bayesian_ensemble, sample_posterior
from fedaux_pl.functional.privacy import (
    bounded_rows,
    clip_rows,
    gaussian_epsilon,
    gaussian_sigma,
    scoring_sensitivity,
    softmax_sensitivity,
)
from fedaux_pl.functional.ridge import classifier_of_means, ridge_classifier
from fedaux_pl.functional.seeds import derive_seed, sample_clients
from fedaux_pl.functional.soft_labels import (
    SoftLabelSum,
    pack_logits,
    soft_labels,
    standardized_labels,
    unpack_logits,
)

__all__ = [
    "LinearClassifier",
    "SoftLabelSum",
    "average_states",
    "balanced_weights",
    "bayesian_ensemble",
    "blend_states",
    "bounded_rows",
    "class_priors",
    "classifier_of_means",
    "clip_rows",
    "clipped_log_likelihood",
    "decode_residuals",
    "decode_statistics",
    "derive_seed",
    "dirichlet_partition",
    "discrete_gaussian",
    "distillation_loss",
    "encode_rows",
    "fit_linear_head",
    "fit_scoring_head",
    "fit_softmax_head",
    "gaussian_epsilon",
    "gaussian_sigma",
    "integer_weights",
    "linear_discriminant",
    "most_records",
    "most_votes",
    "newton_step",
    "noise_of_sum",
    "nt_xent_loss",
    "pack_logits",
    "pool_class_means",
    "proximal_penalty",
    "residuals_unit",
    "ridge_classifier",
    "sample_clients",
    "sample_posterior",
    "scoring_sensitivity",
    "shard_partition",
    "shrink_to_mean",
    "soft_labels",
    "softmax_sensitivity",
    "split_statistics",
    "standardized_labels",
    "statistics_sensitivity",
    "statistics_unit",
    "sum_integer_residuals",
    "sum_integers",
    "sum_residuals",
    "sum_statistics",
    "unequal_partition",
    "unpack_logits",
]
