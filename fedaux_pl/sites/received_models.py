"""The models that a site receives from the server: how it reads them and predicts with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine import StageRunner
from fedaux_pl.engine.inference import predict_private_logits
from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.wire import join_states


@dataclass(frozen=True)
class ReceivedModels:
    """Reads the weights of models, and predicts with them.

    Attributes:
        students: A model of each architecture, whose weights have the expected shapes.
        architectures: The architecture of each client.
        predictors: A model of each architecture, whose weights are overwritten for predictions.
        runner: Predicts on the device of the Trainer, with its precision.
        create_extractor: Returns a copy of a student with the given weights of h_0.
    """

    students: Mapping[str, nn.Module]
    architectures: Sequence[str]
    predictors: Mapping[str, nn.Module]
    runner: StageRunner
    create_extractor: Callable[[nn.Module, State], nn.Module]

    @property
    def device(self) -> torch.device:
        """The device of the Trainer."""
        return self.runner.device

    @property
    def template(self) -> dict[str, Tensor]:
        """Tensors as in a message with the models of all architectures."""
        return join_states({name: model.state_dict() for name, model in self.students.items()})

    @property
    def largest_model(self) -> int:
        """The bytes of the largest message with the model of one architecture."""
        return max(wire.largest_body(model.state_dict()) for model in self.students.values())

    def read_one(self, client: int, body: bytes) -> tuple[str, State]:
        """Read the model of a client; return its architecture and its weights."""
        name = self.architectures[client]
        return name, wire.read_tensors(body, self.students[name].state_dict(), self.device)

    def read_all(self, body: bytes) -> dict[str, State]:
        """Read the models of all architectures."""
        return self.split(wire.read_tensors(body, self.template))

    def split(self, joined: State, prefix: str = "") -> dict[str, State]:
        """Return by architecture the weights that ``join_states`` has joined."""
        return {
            name: {key: joined[f"{prefix}{name}/{key}"] for key in model.state_dict()}
            for name, model in self.students.items()
        }

    def create_h0(self, name: str, weights: State) -> nn.Module:
        """Return h_0 of an architecture with these weights."""
        return self.create_extractor(self.students[name], weights)

    def predict(self, name: str, state: State, inputs: Inputs) -> Tensor:
        """Return f(x) of an architecture with these weights, shape (N, C)."""
        on_device = {key: tensor.to(self.device) for key, tensor in state.items()}
        return self.runner.predict(self.predictors[name], on_device, inputs)

    def predict_each_alone(self, name: str, state: State, inputs: Inputs) -> Tensor:
        """Return f(x), shape (N, C), where other records do not change a row, even by rounding.

        Noise that covers one record is enough only for such predictions.
        """
        model = self.predictors[name]
        model.load_state_dict(state)
        return predict_private_logits(model, inputs)
