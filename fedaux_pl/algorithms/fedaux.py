"""FedAUX (Sattler et al. 2021): FedDF+P whose teachers are weighted by private certainty scores."""

from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.scoring import NormBound, Scoring


class FedAUX(FedDF):
    """Distils the average from the clients' logits weighted by their certainty, A_s (eq. 3).

    Before the first round every client sums up its data in one vector, computed from the features
    of h_0, and releases it once, with noise that makes the release (epsilon, delta)-private. The
    server scores with it. The models that clients send in every round are not covered.

    Args:
        regularization: lambda of the logistic regression (scoring: logistic).
        epsilon: The privacy of a client's release; null for none, and no noise.
        delta: The delta of the guarantee.
        xi: The least score (calibration: none).
        mechanism: ``analytic`` or ``classical`` (the paper's, with more noise, epsilon <= 1).
        norm_bound: What feature vectors are clipped to: a public number, ``negatives`` (the largest
            norm among the public negatives), ``unit`` (all are scaled to norm 1), or ``private``
            (the paper's, over private data too: NOT private, for comparison).
        normalized: Whether lambda weighs against the mean of the loss, as the paper writes. false
            is what the authors' code does: NOT private, for comparison (scoring: logistic).
        tolerance: The gradient norm to which regressions are solved (scoring: logistic).
        scoring: What a client releases: ``logistic`` (the paper's regression that tells its data
            from the public negatives) or ``mean`` (the mean of its feature vectors).
        feature_map: What is done with features first, by statistics of the public auxiliary data:
            ``none``, ``centred`` or ``whitened`` (principal components of variance 1).
        dimensions: The most principal components that are kept (feature_map: whitened).
        whitening: How far their variances are made equal, from 0 (left as they are) to 1 (all 1)
            (feature_map: whitened).
        calibration: How the server makes scores of what was released, at no cost in privacy:
            ``none`` (the paper's sigmoid) or ``standardise`` (exp(sharpness z), z being a client's
            logits standardised over the distillation data).
        sharpness: How much more say the more certain clients have, above 0 and at most 20
            (calibration: standardise).
        shrink: Whether the server first moves what was released towards the clients' mean, as far
            as noise explains that they differ; at no cost in privacy. Clients that are alike then
            have the same say.
        secret_noise: false derives the noise from the seed of the run, so that a simulation can be
            repeated; true takes it from the operating system, as a deployment must.
        pretrained: FedAUX needs it.
        remember: Whether clients that are away in a round go on teaching by what they last said;
            false is the paper's method.
        discount: What the weight of a remembered client is multiplied by for every round that it
            has been away, above 0 and at most 1.
    """

    def __init__(
        self,
        regularization: float = 0.1,
        epsilon: float | None = 0.1,
        delta: float = 1e-5,
        xi: float = 1e-8,
        mechanism: Mechanism = "analytic",
        norm_bound: NormBound = "negatives",
        normalized: bool = True,
        tolerance: float = 1e-10,
        scoring: str = "logistic",
        feature_map: str = "none",
        dimensions: int = 64,
        whitening: float = 1.0,
        calibration: str = "none",
        sharpness: float = 5.0,
        shrink: bool = False,
        secret_noise: bool = False,
        pretrained: bool = True,
        remember: bool = False,
        discount: float = 1.0,
    ) -> None:
        super().__init__(pretrained, remember, discount)
        if not pretrained:
            raise ValueError(
                "FedAUX scores in the features of pre-training and cannot do without it: set "
                "pretrained to true, or choose FedDF"
            )
        self._scoring = Scoring(
            regularization=regularization,
            epsilon=epsilon,
            delta=delta,
            xi=xi,
            mechanism=mechanism,
            norm_bound=norm_bound,
            normalized=normalized,
            tolerance=tolerance,
            scoring=scoring,
            feature_map=feature_map,
            dimensions=dimensions,
            whitening=whitening,
            calibration=calibration,
            sharpness=sharpness,
            shrink=shrink,
        )
        self.secret_noise = secret_noise

    @property
    def name(self) -> str:
        """FedAUX, whose pre-training goes without saying."""
        return super().name.replace("+P", "")

    @property
    def scoring(self) -> Scoring:
        """How the clients' certainty is scored."""
        return self._scoring
