"""FedMD (Li and Wang 2019): clients exchange predictions on public data, not weights."""

from torch import Tensor, nn

from fedaux_pl.algorithms.base import Algorithm, Ensemble
from fedaux_pl.functional import SoftLabelSum


class FedMD(Algorithm):
    """Clients keep their models; the mean of their logits teaches all of them and the server.

    In a round the selected clients train on their own data and send f_i(x) on D_distill. The
    consensus softmax(mean_i f_i(x)) is sent back, and each of them trains its model on it, by the
    options of ``distillation``. So does the server, whose model is that of all accuracies but those
    of clients. No weights are sent: all models begin with h_0 or with weights of the run's seed. Li
    and Wang first train on labels of the public data, which D_distill does not have.
    """

    distills = True
    sends_weights = False

    def own_entries(self, model: nn.Module) -> list[str]:
        """Return the names of all entries."""
        return list(model.state_dict())

    def soft_labels(self, ensemble: Ensemble) -> Tensor:
        """softmax(mean_i f_i(x))."""
        total = SoftLabelSum()
        for _, logits in ensemble.predictions():
            total.add(logits)
        return total.result()
