"""FedPROX (Li et al. 2020): FedAVG with a proximal term in the clients' loss."""

from fedaux_pl.algorithms.base import Algorithm
from fedaux_pl.errors import check_setting


class FedProx(Algorithm):
    """FedAVG with the proximal term mu/2 |theta - theta_0|^2 in the clients' loss.

    Args:
        mu: The strength of the term; 0 is FedAVG. The paper tunes lambda in 1e-5 ... 1e-2; without
            the factor 1/2 in the authors' code, mu = 2 lambda.
    """

    def __init__(self, mu: float = 1e-3, pretrained: bool = False) -> None:
        super().__init__(pretrained)
        check_setting("mu", mu, mu >= 0, "be at least 0")
        self.mu = mu
