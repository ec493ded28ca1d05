"""FedAUX (Sattler et al. 2021): FedDF+P whose teachers are weighted by private certainty scores."""

from typing import Literal

from fedaux_pl.algorithms.feddf import FedDF
from fedaux_pl.functional.privacy import Mechanism
from fedaux_pl.modules import Scoring


class FedAUX(FedDF):
    """Distils the average from the clients' logits weighted by their certainty, A_s (eq. 3).

    Before the first round every client fits a logistic regression that tells its data from the
    public negatives in the features of h_0, and releases it once, with noise that makes the
    release (epsilon, delta)-private. The models that clients send in every round are not covered.

    Args:
        regularization: lambda of the scoring objective.
        epsilon: The privacy of a client's release; null for none, and no noise.
        delta: The delta of the guarantee.
        xi: The least score.
        mechanism: ``analytic`` or ``classical`` (the paper's, with more noise, epsilon <= 1).
        norm_bound: What feature vectors are clipped to: a public number, ``negatives`` (the largest
            norm among the public negatives), or ``private`` (the paper's, over private data too:
            NOT private, for comparison).
        normalized: Whether lambda weighs against the mean of the loss, as the paper writes. false
            is what the authors' code does: NOT private, for comparison.
        tolerance: The gradient norm to which scoring heads are solved.
        secret_noise: false derives the noise from the seed of the run, so that a simulation can be
            repeated; true takes it from the operating system, as a deployment must.
        pretrained: FedAUX needs it.
    """

    def __init__(
        self,
        regularization: float = 0.1,
        epsilon: float | None = 0.1,
        delta: float = 1e-5,
        xi: float = 1e-8,
        mechanism: Mechanism = "analytic",
        norm_bound: float | Literal["negatives", "private"] = "negatives",
        normalized: bool = True,
        tolerance: float = 1e-10,
        secret_noise: bool = False,
        pretrained: bool = True,
    ) -> None:
        super().__init__(pretrained)
        if not pretrained:
            raise ValueError(
                "FedAUX scores in the features of pre-training and cannot do without it: set "
                "pretrained to true, or choose FedDF"
            )
        self._scoring = Scoring(
            regularization, epsilon, delta, xi, mechanism, norm_bound, normalized, tolerance
        )
        self.secret_noise = secret_noise

    @property
    def name(self) -> str:
        """FedAUX, whose pre-training goes without saying."""
        return "FedAUX"

    @property
    def scoring(self) -> Scoring:
        """How the clients' certainty is scored."""
        return self._scoring
