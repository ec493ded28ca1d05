"""FedDF (Lin et al. 2020): the clients teach together, each with the same weight."""

from torch import Tensor

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum


class FedDF(Algorithm):
    """Distils the average from the mean of the clients' logits, A_mean (eq. 2 of the paper).

    Args:
        pretrained: Whether models start from features h_0 that were learned on the auxiliary data
            (FedDF+P), or from random weights.
    """

    distills = True

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """A_mean, or A_s where there are scores."""
        total = SoftLabelSum()
        for update in ensemble.updates:
            scores = None if ensemble.scores is None else ensemble.scores[update.client]
            total.add(ensemble.predict(update.architecture, update.state), scores)
        total.join(ensemble.processes.sum, ensemble.nothing())
        return total.result()
