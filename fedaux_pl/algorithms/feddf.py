"""FedDF (Lin et al. 2020): distillation from the mean of the clients' logits."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum

_LEAST = 1e-30  # the weight of the only teacher of a sample, if it is not positive


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
        choose = self._choose_samples(ensemble)
        for client, logits in ensemble.predictions(self.remember, choose):
            weights = self.teacher_weights(client, ensemble)
            chosen = choose(client)
            if chosen is not None and weights is not None:
                weights = weights.clamp(min=_LEAST) * chosen  # all of them may be 0
            total.add(logits, weights)
        unknown = torch.zeros(ensemble.shape[0], device=ensemble.processes.device)
        for client, logits in ensemble.absent_teachers():
            weights = self.teacher_weights(client, ensemble)
            weights = torch.ones_like(logits[:, 0]) if weights is None else weights.to(logits)
            chosen = choose(client)
            if chosen is not None:
                weights = weights * chosen.to(logits.device)
            if chosen is not None or ensemble.drawn is not None:  # else it has predicted all
                is_known = ~logits[:, 0].isnan()
                unknown = unknown + weights * ~is_known
                weights = weights * is_known
                logits = logits.nan_to_num()
            total.add(logits, weights)
        teachers = [*ensemble.clients, *ensemble.absent_clients]
        self.add_further_teachers(total, ensemble, teachers, unknown)
        return total.result()

    def _choose_samples(self, ensemble: Ensemble) -> Callable[[int], Tensor | None]:
        """Return which samples each client teaches, bool, shape (N,); None for all.

        These are the samples on which v_i(x) is at least ``min_share`` of sum_j v_j(x), or half of
        the mean of all v_j(x), if that is less: many teachers have small shares. Of the round's
        clients the one with the largest v_i(x) always teaches: every sample has a teacher.
        """
        present = ensemble.clients
        has_share = ensemble.min_share and present  # real sites may not have answered
        if not has_share or self.teacher_weights(present[0], ensemble) is None:
            return lambda _: None
        teachers = [*present, *ensemble.absent_clients]

        def weigh(client: int) -> Tensor:
            weights = self.teacher_weights(client, ensemble)
            assert weights is not None  # noqa: S101 - a method has weights, or it has none
            return weights

        least = min(ensemble.min_share, 0.5 / len(teachers)) * sum(map(weigh, teachers))
        largest = reduce(torch.maximum, map(weigh, present))

        def choose(client: int) -> Tensor:
            weights = weigh(client)
            chosen = weights >= least
            return chosen | (weights == largest) if client in present else chosen

        return choose

    def add_further_teachers(
        self, total: SoftLabelSum, ensemble: Ensemble, teachers: Sequence[int], unknown: Tensor
    ) -> None:
        """Add teachers that are not clients; ``teachers`` are the clients that teach.

        ``unknown`` is the sum of v_i(x) of those that have not predicted x, shape (N,).
        """

    def teacher_weights(self, client: int, ensemble: Ensemble) -> Tensor | None:
        """v_i(x) of a client on the ensemble's data, shape (N,); None for 1, the same for all."""
        return None
