"""The paper's mathematics: pure functions of tensors, one for each equation."""

from fedaux_pl.functional.averaging import average_states as average_states
from fedaux_pl.functional.class_means import discriminant_directions as discriminant_directions
from fedaux_pl.functional.class_means import pool_class_means as pool_class_means
from fedaux_pl.functional.linear_head import fit_linear_head as fit_linear_head
from fedaux_pl.functional.losses import distillation_loss as distillation_loss
from fedaux_pl.functional.losses import nt_xent_loss as nt_xent_loss
from fedaux_pl.functional.losses import proximal_penalty as proximal_penalty
from fedaux_pl.functional.packed_logits import pack_logits as pack_logits
from fedaux_pl.functional.packed_logits import unpack_logits as unpack_logits
from fedaux_pl.functional.partition import dirichlet_partition as dirichlet_partition
from fedaux_pl.functional.posterior import bayesian_ensemble as bayesian_ensemble
from fedaux_pl.functional.posterior import sample_posterior as sample_posterior
from fedaux_pl.functional.privacy import bounded_rows as bounded_rows
from fedaux_pl.functional.privacy import clip_rows as clip_rows
from fedaux_pl.functional.privacy import gaussian_epsilon as gaussian_epsilon
from fedaux_pl.functional.privacy import gaussian_sigma as gaussian_sigma
from fedaux_pl.functional.privacy import scoring_sensitivity as scoring_sensitivity
from fedaux_pl.functional.privacy import softmax_sensitivity as softmax_sensitivity
from fedaux_pl.functional.scoring_head_fit import fit_scoring_head as fit_scoring_head
from fedaux_pl.functional.seeds import derive_seed as derive_seed
from fedaux_pl.functional.selection import sample_clients as sample_clients
from fedaux_pl.functional.shrinkage import shrink_to_mean as shrink_to_mean
from fedaux_pl.functional.soft_labels import SoftLabelSum as SoftLabelSum
from fedaux_pl.functional.soft_labels import soft_labels as soft_labels
from fedaux_pl.functional.soft_labels import standardized_labels as standardized_labels
from fedaux_pl.functional.softmax_head_fit import fit_softmax_head as fit_softmax_head
