"""FedAUX (Sattler et al. 2021): FedDF+P whose teachers are weighted by private certainty scores."""

from torch import Tensor

from fedaux_pl.algorithms.base import Ensemble
from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.scoring import (
    Calibration,
    FeatureMap,
    Mean,
    NormBound,
    Privacy,
    Scorer,
    Scoring,
    Standardized,
    Whitened,
)


class FedAUX(FedDF):
    """Distills the average from the clients' logits weighted by their certainty, A_s (eq. 3).

    Before the first round every client summarizes its data in one vector, computed from the
    features of h_0, and releases it once, with noise that makes the release (epsilon,
    delta)-private if it is secret. The server scores with it. The guarantee does not cover the
    models that clients send in every round.

    Args:
        scorer: What a client releases: ``Mean`` (the mean of its feature vectors) or ``Logistic``
            (the paper's regression that separates its data from the public negatives).
        feature_map: How features are mapped first, by statistics of the public auxiliary data:
            ``Whitened`` (scaled principal components), ``Centered`` or ``Identity`` (the paper's).
        calibration: How the server turns a released vector into scores, at no cost in privacy:
            ``Standardized`` (exp(sharpness z), where z are a client's logits standardized over the
            distillation data) or ``Sigmoid`` (the paper's).
        norm_bound: The norm to which feature vectors are clipped: a public number, ``negatives``
            (the largest norm among the public negatives), ``unit`` (all are scaled to norm 1), or
            ``private`` (the paper's, over private data too: NOT private, for comparison).
        privacy: The privacy of a client's release: epsilon, delta, and whether noise is secret.
        shrink: Whether the server first moves the released vectors towards their mean, as far as
            noise explains that they differ; at no cost in privacy.
        remember: Whether absent clients keep teaching with the logits of the last round in which
            they took part; false is the paper's method.
        discount: The factor on the weight of an absent client for every round of its absence,
            above 0 and at most 1.

    Example:
        >>> from fedaux_pl.scoring import Identity, Logistic, Sigmoid
        >>> FedAUX().scoring.scorer
        Mean()
        >>> paper = FedAUX(
        ...     scorer=Logistic(regularization=0.1),
        ...     feature_map=Identity(),
        ...     calibration=Sigmoid(),
        ...     norm_bound="negatives",
        ...     shrink=False,
        ...     remember=False,
        ... )
    """

    pretrained = True

    # The objects are frozen. The command line reads them from this signature, as class paths.
    def __init__(
        self,
        *,
        scorer: Scorer = Mean(),  # noqa: B008
        feature_map: FeatureMap = Whitened(dimensions=128, whitening=0.75),  # noqa: B008
        calibration: Calibration = Standardized(sharpness=3.0),  # noqa: B008
        norm_bound: NormBound = "unit",
        privacy: Privacy = Privacy(),  # noqa: B008
        shrink: bool = True,
        remember: bool = True,
        discount: float = 1.0,
    ) -> None:
        super().__init__(pretrained=True, remember=remember, discount=discount)
        self.scoring = Scoring(
            scorer=scorer,
            feature_map=feature_map,
            calibration=calibration,
            norm_bound=norm_bound,
            privacy=privacy,
            shrink=shrink,
        )
        if scorer.uses_labels:
            raise ValueError(
                f"FedAUX needs a scorer without labels, such as Mean(), but got {scorer!r}"
            )

    def teacher_weights(self, client: int, ensemble: Ensemble) -> Tensor:
        """s_i(x), which makes the soft labels A_s = softmax(sum_i s_i f_i / sum_i s_i) (eq. 3)."""
        assert ensemble.scores is not None  # noqa: S101 - Algorithm 1 computes them
        return ensemble.scores[client]
