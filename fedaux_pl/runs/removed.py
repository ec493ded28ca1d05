"""What version 1.0 had and version 2.0 no longer has, with what to do instead.

A name is that of an option, such as ``model.distillation.min_share``, of an option with one of its
values, such as ``model.local.schedule=step``, of a class, such as ``FedMD``, or of a configuration,
such as ``methods/fedmd``. The command line answers each of them with its line.
"""

from collections.abc import Mapping

_FEATURES = (
    "MeanScoring and StatisticsScoring whiten features, with scoring.dimensions and "
    "scoring.whitening, and PaperScoring uses them as they are; FedCOF has dimensions and whitening"
)

REMOVED: Mapping[str, str] = {
    "DSFL": "choose FedDF or FedAvg; on the digits both were more accurate",
    "Fed3R": "FedClassMeans with classifier: ridge",
    "FedMD": "choose FedDF or FedAvg; on the digits both were more accurate",
    "methods/dsfl": "choose methods/feddf or methods/fedavg; both were more accurate",
    "methods/fed3r": "FedClassMeans with classifier: ridge",
    "methods/fedmd": "choose methods/feddf or methods/fedavg; both were more accurate",
    "model.algorithm.calibration": (
        "MeanScoring has scoring.sharpness (it was calibration.sharpness), PaperScoring the sigmoid"
    ),
    "model.algorithm.discount": "remembered teachers count like those of the round: leave it out",
    "model.algorithm.max_absent": (
        "the 1,000 clients that took part most recently are remembered: leave it out"
    ),
    "model.algorithm.privacy.secure.attempts": (
        "epsilon pays for one attempt: leave it out; a run that 1.0 began with more must be "
        "finished by 1.0, or its sites pay again"
    ),
    "model.algorithm.feature_map": _FEATURES,
    "model.algorithm.norm_bound": (
        "choose scoring: PaperScoring for negatives (for private with variant: literal), "
        "MeanScoring and StatisticsScoring for unit"
    ),
    "model.algorithm.scorer": (
        "choose scoring: MeanScoring for Mean, StatisticsScoring for ClassStatistics, or "
        "PaperScoring for Logistic; docs/extending.md shows a recipe with a scorer of your own"
    ),
    "model.algorithm.shrink": (
        "MeanScoring always shrinks released vectors, and PaperScoring never does: leave it out"
    ),
    "model.distillation.min_share": (
        "every client's prediction counts: the option saved at most a third of a fast round"
    ),
    "model.distillation.fraction": (
        "use data.distill_fraction: one random part of D_distill is drawn for the whole run"
    ),
    **{
        f"model.{stage}.augmentation{name}": (
            "write torchvision.transforms.v2.RandAugment, with the same results"
        )
        for stage in ("local", "distillation")
        for name in ("=randaugment", ".randaugment")  # alone, or with its options
    },
    "model.distillation.hard_labels": "students learn soft labels alone: leave it out",
    "GradientNoise": "to train by DP-SGD, use opacus",
    "PrivateClientModule": "to train by DP-SGD, use opacus",
    "SampledGaussian": "to account for DP-SGD, use opacus or dp-accounting",
    "UpdatePrivacy": "if everything that leaves a client must be private, use FedClassMeans",
    "model.local.privacy": (
        "if everything that leaves a client must be private, use FedClassMeans: model updates have "
        "no privacy guarantee"
    ),
    "noise_multiplier": "to account for DP-SGD, use opacus or dp-accounting",
    "paper/private_updates": "docs/private_results.md has its results, measured with 1.0.0",
    "privacy/private_updates": (
        "if everything that leaves a client must be private, use methods/fedclassmeans: model "
        "updates have no privacy guarantee"
    ),
    "scoring/whitened_logistic": "choose scoring/whitened_mean, the default of FedAUX",
    "sampled_gaussian_epsilon": "to account for DP-SGD, use opacus or dp-accounting",
    "vote_epsilon": (
        "noise took all that votes gain: a site that does not want to reveal its votes should not "
        "vote"
    ),
    "model.optimizer_state": (
        "every round begins with new optimizers, and Centralized always keeps its own: leave it out"
    ),
    **{
        f"model.{stage}.schedule=step": "use constant or cosine"
        for stage in ("local", "distillation", "pretraining")
    },
    **{
        f"model.{stage}.optimizer=lars": "use adam, adamw or sgd"
        for stage in ("local", "distillation", "pretraining")
    },
    "model.batchnorm_statistics=batch": (
        "use running or own: predictions depended on the other images of their batch"
    ),
}
