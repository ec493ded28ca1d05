"""FedDF (Lin et al. 2020): distillation from the mean of the clients' logits."""

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum


class FedDF(Algorithm):
    """Distills the average from the mean of the clients' logits, A_mean (eq. 2 of the paper).

    Args:
        remember: Whether absent clients keep teaching with the logits of the last round in which
            they took part, the 1,000 most recent ones; false is the paper's method.

    Examples:
        >>> FedDF(pretrained=True, remember=True).name
        'FedDF+P with memory'
    """

    distills = True

    def __init__(self, pretrained: bool = False, remember: bool = False) -> None:
        super().__init__(pretrained)
        self.remember = remember

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """softmax(sum_i v_i(x) f_i(x) / sum_i v_i(x)) with the weights v_i of the teachers."""
        total = SoftLabelSum()
        for client, logits in ensemble.predictions(self.remember):
            total.add(logits, self.teacher_weights(client, ensemble))
        for client, logits in ensemble.absent_teachers():
            total.add(logits, self.teacher_weights(client, ensemble))
        self.add_further_teachers(total, ensemble)
        return total.result()

    def add_further_teachers(self, total: SoftLabelSum, ensemble: Ensemble) -> None:
        """Add teachers that are not clients."""

    def teacher_weights(self, client: int, ensemble: Ensemble) -> Tensor | None:
        """v_i(x) of a client on the ensemble's data, shape (N,); None for 1, the same for all."""
        return None
