"""Answers ``evaluate`` with noise: the site releases a noisy accuracy on test data of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedaux_pl.data import Examples
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import Privacy
from fedaux_pl.sites import wire
from fedaux_pl.sites.budget import Budget, NewRelease
from fedaux_pl.sites.handlers.handler import Reply
from fedaux_pl.sites.ledger_keys import RIGHT_ANSWERS, evaluation_key
from fedaux_pl.sites.messages import evaluate
from fedaux_pl.sites.received_models import ReceivedModels
from fedaux_pl.sites.wire import Message, join_states

_SENSITIVITY = 1.0  # see ``EvaluateWithNoise``


@dataclass(frozen=True)
class EvaluateWithNoise:
    """Releases the number of right answers of the ensemble with Gaussian noise.

    Sensitivity: 1. Proof: each prediction depends only on its own record, so replacing one record
    changes at most one answer. The number of test records is public, as |D_i| is.

    Attributes:
        models: Reads the models and predicts with them.
        examples: The test data of the site.
        fingerprint: The keyed fingerprint of the test data, for the keys of the ledger.
        model_options: The option ``model_options`` of the federation.
        privacy: The privacy of one evaluation, which has an epsilon.
        budget: The ledger of the site and its limits, for the test records.
        noise_seed: Returns the seed of the noise of a round, in a rehearsal. None takes the noise
            from the operating system.
    """

    models: ReceivedModels
    examples: Examples
    fingerprint: str
    model_options: Mapping[str, Any]
    privacy: Privacy
    budget: Budget
    noise_seed: Callable[[int], int] | None

    @property
    def largest_request(self) -> int:
        """The bytes of the models of all architectures."""
        return wire.largest_body(self.models.template)

    def answer(self, client: int, request: Message) -> Reply:
        """Return only the accuracy, computed from the noisy number of right answers."""
        round_ = wire.read_count(request.fields, "round")
        states = self.models.read_all(request.body)
        noisy, guarantee = self.release(states, round_)
        count = len(self.examples)
        metrics = {ACCURACY: min(max(noisy / count, 0.0), 1.0)}
        # noise from a seed guarantees nothing, so the answer states no epsilon
        epsilon = self.privacy.epsilon if self.noise_seed is None else None
        about = f"the accuracy on {count} test samples of its own, {guarantee}"
        return Reply(*evaluate.write_noisy_answer(count, metrics, epsilon), about)

    def release(self, states: Mapping[str, State], round_: int) -> tuple[float, str]:
        """Return the noisy number of right answers and its guarantee.

        If the ledger has the number for the same models, return it again, at no cost.
        """
        what = "the number of its test records with a right answer"
        cost = replace(self.privacy.cost(_SENSITIVITY), what=what)
        seed = None if self.noise_seed is None else self.noise_seed(round_)

        def release() -> NewRelease:
            right = self.count_right(states)
            noisy, _ = self.privacy.release(right, _SENSITIVITY, seed)
            return {RIGHT_ANSWERS: noisy}, {0: cost}

        received = tensor_digest(*join_states(states).values())
        architectures = list(self.models.students)
        key = evaluation_key(
            architectures, self.model_options, self.privacy, self.fingerprint, received
        )
        tensors, total = self.budget.release_once(key, release, cost)
        guarantee = "NOT private (a rehearsal)" if total is None else total.describe_one(cost)
        return float(tensors[RIGHT_ANSWERS]), guarantee

    def count_right(self, states: Mapping[str, State]) -> Tensor:
        """Return the number of right answers of the ensemble, shape (1,)."""
        is_right = self.predict(states).argmax(dim=1) == self.examples.targets
        return is_right.sum()[None]

    def predict(self, states: Mapping[str, State]) -> Tensor:
        """Return the logits of the ensemble on the test data, shape (N, C)."""
        inputs = self.examples.inputs
        logits = [
            self.models.predict_each_alone(name, state, inputs) for name, state in states.items()
        ]
        return torch.stack(logits).mean(dim=0)


def check_evaluate_epsilon(epsilon: float, limit: float, statistics: BatchNormOption) -> None:
    """Raise a ConfigurationError if the noise costs too much or does not cover the answers."""
    if epsilon > limit:
        raise ConfigurationError(
            f"evaluate_epsilon is {epsilon:g}, but all answers together may cost epsilon {limit:g} "
            "(that of the method, 0 if it has none): state more with --epsilon_limit, or lower it"
        )
    if statistics == "own":
        raise ConfigurationError(
            "with batchnorm_statistics 'own' an answer depends on the training records, which the "
            "noise of --evaluate_epsilon does not cover: set it to 'running', or leave out "
            "--evaluate_epsilon"
        )
