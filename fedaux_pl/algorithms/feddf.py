"""FedDF (Lin et al. 2020): distillation from the mean of the clients' logits."""

from collections.abc import Sequence

import torch
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
        unknown = torch.zeros(ensemble.shape[0], device=ensemble.processes.device)
        for client, logits in ensemble.absent_teachers():
            weights = self.teacher_weights(client, ensemble)
            weights = torch.ones_like(logits[:, 0]) if weights is None else weights.to(logits)
            if ensemble.drawn is not None:  # else it has predicted all
                is_known = ~logits[:, 0].isnan()
                unknown = unknown + weights * ~is_known
                weights = weights * is_known
                logits = logits.nan_to_num()
            total.add(logits, weights)
        teachers = [*ensemble.clients, *ensemble.absent_clients]
        self.add_further_teachers(total, ensemble, teachers, unknown)
        return total.result()

    def add_further_teachers(
        self, total: SoftLabelSum, ensemble: Ensemble, teachers: Sequence[int], unknown: Tensor
    ) -> None:
        """Add teachers that are not clients; ``teachers`` are the clients that teach.

        ``unknown`` is the sum of v_i(x) of those that have not predicted x, shape (N,).
        """

    def teacher_weights(self, client: int, ensemble: Ensemble) -> Tensor | None:
        """v_i(x) of a client on the ensemble's data, shape (N,); None for 1, the same for all."""
        return None
