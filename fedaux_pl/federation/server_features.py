"""The features h_0(x) of the data that the server has; those of D_aux are computed once."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.inference import predict_features


class ServerFeatures:
    """h_0(x) on D_aux, on its parts D^- and D_distill, and on the evaluated data.

    Args:
        data: The data of the federation.
        h0: h_0 of each architecture.
        predict: Computes h_0(x) on D_aux.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        h0: Mapping[str, nn.Module],
        predict: Callable[[nn.Module, Tensor], Tensor] = predict_features,
    ) -> None:
        self.data, self.h0, self._predict = data, h0, predict
        self._auxiliary: dict[str, Tensor] = {}
        self.sent_negatives: dict[str, Tensor] = {}  # as sites got them in an earlier run

    def auxiliary(self, architecture: str) -> Tensor:
        """h_0(x) on D_aux, shape (N, d)."""
        if architecture not in self._auxiliary:
            inputs = self.data.auxiliary_inputs
            self._auxiliary[architecture] = self._predict(self.h0[architecture], inputs)
        return self._auxiliary[architecture]

    def negatives(self, architecture: str) -> Tensor:
        """h_0(x) on D^-, shape (|D^-|, d)."""
        if architecture in self.sent_negatives:
            return self.sent_negatives[architecture]
        return self.auxiliary(architecture)[self.data.auxiliary_rows["negatives"]]

    def parts(self, architecture: str) -> dict[str, Tensor]:
        """h_0(x) on D_distill (``distill``) and on the evaluated data (``evaluation``)."""
        evaluated = self.data.evaluation_examples.inputs
        return {
            "distill": self.auxiliary(architecture)[self.data.auxiliary_rows["distill"]],
            "evaluation": predict_features(self.h0[architecture], evaluated),
        }
