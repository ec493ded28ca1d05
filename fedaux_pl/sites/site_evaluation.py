"""What a site tells about the server's models on test data of its own, if its owner allows it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.federation import Federation
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.federation.students import Students
from fedaux_pl.functional.averaging import State
from fedaux_pl.sites import wire
from fedaux_pl.sites.private_answers import PrivateAnswers
from fedaux_pl.sites.wire import Message, Reply


def split_states(joined: State, students: Students, prefix: str = "") -> dict[str, State]:
    """Return the states that ``join_states`` has joined, by architecture."""
    return {
        name: {key: joined[f"{prefix}{name}/{key}"] for key in model.state_dict()}
        for name, model in students.items()
    }


def read_metrics(answer: Message, chosen: Collection[str]) -> dict[str, float]:
    """Read the accuracy of a site and the chosen metrics that it has."""
    values = answer.fields.get("metrics")
    if not isinstance(values, Mapping):
        values = {}
    metrics = {ACCURACY: float(wire.read_number(values, ACCURACY, 0, 1))}
    for name in chosen:
        if name in values:
            metrics[name] = float(wire.read_number(values, name, -1e30, 1e30))
    return metrics


@dataclass(frozen=True)
class SiteEvaluation:
    """Evaluates the ensemble of the server's models on the test data of a site.

    With ``evaluate_epsilon`` the number of right answers is released with Gaussian noise.
    Sensitivity: 1. Proof: a prediction depends on one record alone, so that a replaced record
    changes at most one answer; the number of test records is public, as |D_i| is.
    """

    federation: Federation
    clients: LocalClients
    answers: PrivateAnswers

    def answer(self, request: Message) -> Reply:
        """Return the metrics of the models in a request, or the accuracy alone, with noise."""
        federation = self.federation
        answers = self.answers
        labels = answers.examples.targets
        count = len(answers)
        round_ = wire.read_count(request.fields, "round")
        received = wire.read_tensors(request.body, wire.join_states(federation.students.states()))
        if answers.privacy.epsilon is None:
            logits = self._predict(received)
            statistics = ""
            if federation.describe_client_models():
                logits = self._predict_own(received, wire.read_count(request.fields, "client"))
                statistics = ", with BatchNorm statistics of its training data"
            metrics = federation.evaluation.metrics(logits, labels)
            about = (
                f"metrics on {count} test samples of its own{statistics}: NOT private, no epsilon "
                "covers it"
            )
            return {"count": count, "metrics": metrics}, b"", about

        def count_right() -> Tensor:
            return (self._predict(received).argmax(dim=1) == labels).sum()[None]

        what = "the number of its test records with a right answer"
        digest = tensor_digest(*received.values())
        noisy, guarantee = answers.release(what, count_right, 1.0, digest, round_)
        metrics = {ACCURACY: min(max(float(noisy) / count, 0.0), 1.0)}
        about = f"the accuracy on {count} test samples of its own, {guarantee}"
        return {"count": count, "epsilon": answers.epsilon, "metrics": metrics}, b"", about

    def _predict_own(self, received: State, client: int) -> Tensor:
        """Return the logits of the model of this site, with BatchNorm statistics of its data."""
        name = self.federation.architectures[client]
        state = split_states(received, self.federation.students)[name]
        return self.answers.predict(name, self.clients.with_own_statistics(client, state))

    def _predict(self, received: State) -> Tensor:
        """Return the logits of the ensemble of received models on the test data."""
        states = split_states(received, self.federation.students)
        logits = [self.answers.predict(name, state) for name, state in states.items()]
        return torch.stack(logits).mean(dim=0)
