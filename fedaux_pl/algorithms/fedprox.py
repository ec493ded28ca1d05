"""FedPROX (Li et al. 2020): FedAVG with a proximal term in the clients' loss."""

from dataclasses import dataclass

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.errors import check_setting


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAVG with the proximal term mu/2 |theta - theta_0|^2 in the clients' loss.

    Args:
        mu: The strength of the term; 0 is FedAVG. The paper tunes lambda in 1e-5 ... 1e-2. Because
            the authors' code lacks the factor 1/2, mu = 2 lambda.
        pretrained: Whether models start from h_0, learned on the auxiliary data (the paper's +P).
    """

    mu: float = 1e-3
    pretrained: bool = False

    def __post_init__(self) -> None:
        check_setting("mu", self.mu, self.mu >= 0, "be at least 0")
