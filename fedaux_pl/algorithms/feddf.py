"""FedDF (Lin et al. 2020): the clients teach together, each with the same weight."""

import torch
from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum


class FedDF(Algorithm):
    """Distils the average from the mean of the clients' logits, A_mean (eq. 2 of the paper).

    Args:
        pretrained: Whether models start from features h_0 that were learned on the auxiliary data
            (FedDF+P), or from random weights.
        remember: Whether clients that are away in a round go on teaching by what they last said;
            false is the paper's method.
        discount: What the weight of a remembered client is multiplied by for every round that it
            has been away, above 0 and at most 1.
    """

    distills = True

    def __init__(
        self, pretrained: bool = False, remember: bool = False, discount: float = 1.0
    ) -> None:
        super().__init__(pretrained)
        if not 0 < discount <= 1:
            raise ValueError(f"discount must be above 0 and at most 1, but is {discount}")
        if discount != 1 and not remember:
            raise ValueError(
                f"discount {discount} has no effect without memory: set remember to true"
            )
        self.remember = remember
        self.discount = discount

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """A_mean, or A_s where there are scores."""
        total = SoftLabelSum()
        for update in ensemble.updates:
            logits = ensemble.predict(update.architecture, update.state)
            ensemble.hear(update.client, logits)
            total.add(logits, None if ensemble.scores is None else ensemble.scores[update.client])
        for client, age, logits in ensemble.absent():
            weight = torch.ones_like(logits[:, 0])
            if ensemble.scores is not None:
                weight = ensemble.scores[client].to(weight)
            total.add(logits, weight * self.discount**age)
        total.join(ensemble.processes.sum, ensemble.nothing())
        return total.result()
