"""Answers ``evaluate`` without noise: the site measures the models on test data of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.data import Examples
from fedaux_pl.federation.evaluation_metrics import EvaluationMetrics
from fedaux_pl.federation.personal import PersonalModels
from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.messages import evaluate
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message


@dataclass(frozen=True)
class Evaluate:
    """Measures the ensemble of the server's models, or the model that the site itself uses.

    Attributes:
        models: Reads the models and predicts with them.
        examples: The test data of the site.
        metrics: The metrics of the run.
        personal: Estimates BatchNorm statistics on the training data of the site.
        uses_own_statistics: Whether the model of the site has such BatchNorm statistics.
    """

    models: ReceivedModels
    examples: Examples
    metrics: EvaluationMetrics
    personal: PersonalModels
    uses_own_statistics: bool

    @property
    def largest_request(self) -> int:
        """The bytes of the models of all architectures."""
        return wire.largest_body(self.models.template)

    def answer(self, client: int, request: Message) -> Reply:
        """Return the metrics."""
        states = self.models.read_all(request.body)
        if self.uses_own_statistics:
            logits = self._predict_with_own_statistics(client, states)
            statistics = ", with BatchNorm statistics of its training data"
        else:
            logits = self._predict_with_ensemble(states)
            statistics = ""
        metrics = self.metrics(logits, self.examples.targets)
        count = len(self.examples)
        guarantee = (
            f"metrics on {count} test samples of its own{statistics}: NOT private, no epsilon "
            "covers them"
        )
        return Reply(*evaluate.write_answer(count, metrics), guarantee)

    def _predict_with_own_statistics(self, client: int, states: dict[str, State]) -> Tensor:
        name = self.models.architectures[client]
        state = self.personal.with_own_statistics(client, states[name])
        return self.models.predict(name, state, self.examples.inputs)

    def _predict_with_ensemble(self, states: dict[str, State]) -> Tensor:
        inputs = self.examples.inputs
        logits = [self.models.predict(name, state, inputs) for name, state in states.items()]
        return torch.stack(logits).mean(dim=0)
