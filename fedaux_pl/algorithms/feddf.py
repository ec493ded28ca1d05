"""FedDF (Lin et al. 2020): distillation from the mean of the clients' logits."""

from collections.abc import Iterator

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum


class FedDF(Algorithm):
    """Distills the average from the mean of the clients' logits, A_mean (eq. 2 of the paper).

    Args:
        remember: Whether absent clients continue to teach with their last logits; the 1,000 clients
            that took part most recently are remembered. The paper's method corresponds to false.

    Examples:
        >>> FedDF(pretrained=True, remember=True).name
        'FedDF+P with memory'
    """

    distills = True

    def __init__(self, pretrained: bool = False, remember: bool = False) -> None:
        super().__init__(pretrained)
        self.remember = remember

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x)) over the teachers i, shape (N, C)."""
        total = SoftLabelSum()
        for logits, weights in self.teachers(ensemble):
            total.add(logits, weights)
        return total.result()

    def teachers(self, ensemble: Ensemble) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield each teacher's logits f_i(x), shape (N, C), and s_i(x), shape (N,), None for 1."""
        for _, logits in ensemble.teachers(self.remember):
            yield logits, None
