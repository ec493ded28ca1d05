"""The features of h_0 at the server, from which scores are computed."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine.inference import predict_features


class ServerFeatures:
    """h_0(x) on D_aux, computed once, on its parts D^- and D_distill, and on the evaluated data.

    ``h0`` has h_0 of each architecture, and ``predict`` computes h_0(x) on D_aux.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        h0: Mapping[str, nn.Module],
        predict: Callable[[nn.Module, Inputs], Tensor] = predict_features,
    ) -> None:
        self.data, self.h0, self._predict = data, h0, predict
        self._auxiliary: dict[str, Tensor] = {}
        self.sent_negatives: dict[str, Tensor] = {}  # as sites got them in an earlier run

    def auxiliary(self, architecture: str) -> Tensor:
        """Return h_0(x) on D_aux, shape (N, d)."""
        if architecture not in self._auxiliary:
            inputs = self.data.auxiliary_inputs
            self._auxiliary[architecture] = self._predict(self.h0[architecture], inputs)
        return self._auxiliary[architecture]

    def negatives(self, architecture: str) -> Tensor:
        """Return h_0(x) on D^-, shape (|D^-|, d)."""
        if architecture in self.sent_negatives:
            return self.sent_negatives[architecture]
        return self.auxiliary(architecture)[self.data.auxiliary_rows["negatives"]]

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return h_0(x) on D_distill and on the evaluated data, by part and architecture."""
        rows, evaluated = self.data.auxiliary_rows["distill"], self.data.evaluation_examples.inputs
        return {
            "distill": {name: self.auxiliary(name)[rows] for name in self.h0},
            "evaluation": {name: predict_features(h0, evaluated) for name, h0 in self.h0.items()},
        }
