"""The features h_0(x) that the server computes on its own data."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine import predict_features


class PublicFeatures:
    """h_0(x) on D_aux, computed once, on its parts D^- and D_distill, and on the evaluated data.

    Args:
        data: The data of the run.
        h0: h_0 of each architecture, as a network in evaluation mode.
        predict: Computes h_0(x) on D_aux.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        h0: Mapping[str, nn.Module],
        predict: Callable[[nn.Module, Inputs], Tensor] = predict_features,
    ) -> None:
        self.data = data
        self.h0 = h0
        self._predict = predict
        self._auxiliary: dict[str, Tensor] = {}

    def auxiliary(self, architecture: str) -> Tensor:
        """Return h_0(x) on D_aux, shape (N, d)."""
        if architecture not in self._auxiliary:
            inputs = self.data.auxiliary_inputs
            self._auxiliary[architecture] = self._predict(self.h0[architecture], inputs)
        return self._auxiliary[architecture]

    def negatives(self, architecture: str) -> Tensor:
        """Return h_0(x) on D^-, shape (|D^-|, d)."""
        return self.auxiliary(architecture)[self.data.auxiliary_rows["negatives"]]

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return h_0(x) on D_distill and on the evaluated data, by part and architecture."""
        rows = self.data.auxiliary_rows["distill"]
        evaluated = self.data.evaluation_examples.inputs
        return {
            "distill": {name: self.auxiliary(name)[rows] for name in self.h0},
            "evaluation": {name: predict_features(h0, evaluated) for name, h0 in self.h0.items()},
        }
