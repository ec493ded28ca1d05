"""h(x) where only heads are trained: computed once, not in every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedaux_pl.engine.inference import predict_features
from fedaux_pl.federation.given_h0 import same_weights
from fedaux_pl.federation.run import Run
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import backbone_state


@dataclass
class FixedFeatures:
    """h(x) of the clients' training data by one architecture, for the clients that have trained."""

    run: Run
    backbone: State = field(default_factory=dict)
    clients: set[int] = field(default_factory=set)
    values: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, d), 0 for other clients

    def update(self, model: nn.Module, state: State, clients: Sequence[int]) -> None:
        """Compute the rows of new clients, or of all if h is another one, as a site may get it."""
        backbone = backbone_state(state)
        if not same_weights(backbone, self.backbone):
            self.clients.clear()
            self.backbone = backbone
        data = self.run.data
        new = [client for client in clients if client not in self.clients]
        if not new:
            return
        model.load_state_dict(state)
        with self.run.progress.stage("features", len(new), "client") as stage:
            for client in new:
                inputs = data.client(client).inputs
                features = predict_features(model, inputs).to(inputs.device)
                if not self.clients:
                    size = len(data.all_inputs[0]), features.shape[1]
                    self.values = features.new_zeros(size)
                self.values[data.client_indices[client].to(inputs.device)] = features
                self.clients.add(client)
                stage.update(1)
