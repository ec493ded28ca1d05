"""DS-FL (Itahara et al. 2020): FedMD with a sharpened mean of the clients' probabilities."""

from torch import Tensor

from fedaux_pl.algorithms.base import Ensemble
from fedaux_pl.algorithms.fedmd import FedMD
from fedaux_pl.errors import check_setting, is_positive


class DSFL(FedMD):
    """The consensus is softmax(p(x) / T) of the mean p(x) of the clients' probabilities.

    Clients with different classes disagree, and p(x) says little. A small T reduces its entropy
    (entropy reduction aggregation). All else is as in ``FedMD``. Itahara et al. exchange
    predictions on a new part of the public data in every round.

    Args:
        temperature: T, above 0.
    """

    def __init__(self, temperature: float = 0.1, pretrained: bool = False) -> None:
        super().__init__(pretrained)
        is_valid = is_positive(temperature)
        check_setting("temperature", temperature, is_valid, "be a positive number")
        self.temperature = temperature

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """softmax(p(x) / T)."""
        total = ensemble.zeros()
        for _, logits in ensemble.predictions():
            total = total + logits.float().softmax(dim=-1)
        mean = total / len(ensemble.clients)
        return (mean / self.temperature).softmax(dim=-1)
