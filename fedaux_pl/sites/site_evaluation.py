"""What a site tells about the server's models on test data of its own, if its owner allows it."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data import Examples
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import key_id, keyed_fingerprint, machine_key, record_digests
from fedaux_pl.data.holdings import renumber
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.lazy_inputs import keep_in_host
from fedaux_pl.engine.inference import predict_private_features, server_statistics
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.federation.students import ModulesByName
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import Ledger, Privacy
from fedaux_pl.scoring.budget import Budget, NewRelease, ReleaseKey
from fedaux_pl.scoring.release import VERSION
from fedaux_pl.sites import wire
from fedaux_pl.sites.site_settings import Limits
from fedaux_pl.sites.wire import Answer, Message


def join_states(students: ModulesByName) -> State:
    """Return the states of the models of all architectures as one."""
    joined: dict[str, Tensor] = {}
    for name, model in students.items():
        joined |= {f"{name}/{key}": tensor for key, tensor in model.state_dict().items()}
    return joined


def read_metrics(
    answer: Message, chosen: Collection[str]
) -> tuple[int, float | None, dict[str, float]]:
    """Read the number of samples, epsilon (None without noise) and the chosen metrics of a site."""
    fields = answer.fields
    values = fields.get("metrics")
    if not isinstance(values, Mapping):
        values = {}
    count = wire.read_count(fields, "count")
    wire.expect(count > 0, "it has no test samples")
    epsilon = None
    if fields.get("epsilon") is not None:
        epsilon = wire.read_number(fields, "epsilon", math.ulp(0.0), math.inf)
    metrics = {ACCURACY: float(wire.read_number(values, ACCURACY, 0, 1))}
    for name in chosen:
        if name in values:
            metrics[name] = float(wire.read_number(values, name, -1e30, 1e30))
    return count, epsilon, metrics


class SiteEvaluation:
    """Evaluates the ensemble of the server's models on the test data of a site.

    With ``evaluate_epsilon`` the number of right answers is released with Gaussian noise.
    Sensitivity: 1. Proof: a prediction depends on one record alone, so that a replaced record
    changes at most one answer; the number of test records is public, as |D_i| is.
    """

    def __init__(
        self, federation: Federation, limits: Limits, privacy: Privacy, origin: str = ""
    ) -> None:
        data = federation.data
        self.federation = federation
        self.limits = limits
        self.privacy = Privacy(limits.evaluate_epsilon, privacy.delta)
        epsilons = limits.epsilons(privacy)
        if self.privacy.epsilon is not None:
            limit = min(epsilons.values())
            if self.privacy.epsilon > limit:
                raise ConfigurationError(
                    f"evaluate_epsilon is {self.privacy.epsilon:g}, but all evaluations together "
                    f"may cost epsilon {limit:g} (that of the method, 0 if it has none): state "
                    "more with --epsilon_limit, or lower it"
                )
            if federation.batchnorm_statistics == "batch":
                raise ConfigurationError(
                    "with batchnorm_statistics 'batch' an answer depends on several test records: "
                    "set it to 'running', or leave out --evaluate_epsilon"
                )
            if federation.batchnorm_statistics == "own":
                raise ConfigurationError(
                    "with batchnorm_statistics 'own' an answer depends on the training records, "
                    "which the noise of --evaluate_epsilon does not cover: set it to 'running', or "
                    "leave out --evaluate_epsilon"
                )
        test = renumber(data.private.test(), "class", tuple(data.classes), "test")
        check_same_kind(data.all_inputs[0], test.inputs, "training and test data of this site")
        test = Examples(keep_in_host(test.inputs), test.targets, test.classes)
        self.test = test.to(federation.trainer.strategy.root_device)
        if self.privacy.epsilon is not None:
            key = machine_key()
            labels = self.test.targets
            digests = [record_digests(test.inputs, known, key) for known in (labels, None)]
            ledger = None if limits.rehearsal else Ledger(key_id(key), origin=origin)
            records = {0: np.concatenate(digests)}
            self.budget = Budget(ledger, records, privacy.delta, epsilons)
            contents = keyed_fingerprint(key, test.inputs, labels)
            models = f"{list(federation.students)} {federation.model_options}"
            options = f"{self.privacy.epsilon} {self.privacy.delta}"
            self._key = f"evaluation {VERSION} {models} {options} {contents}"

    def answer(self, request: Message) -> Answer:
        """Return the metrics of the models in a request, or the accuracy alone, with noise."""
        federation = self.federation
        count = len(self.test)
        round_ = wire.read_count(request.fields, "round")
        received = wire.read_tensors(request.body, join_states(federation.students))
        if self.privacy.epsilon is None:
            if federation.describe_client_models():
                logits = self._predict_own(received, wire.read_count(request.fields, "client"))
                statistics = ", with BatchNorm statistics of its training data"
            else:
                logits = self._predict(received)
                statistics = ""
            metrics = federation.evaluation(logits, self.test.targets)
            about = (
                f"metrics on {count} test samples of its own{statistics}: NOT private, no epsilon "
                "covers it"
            )
            return {"count": count, "metrics": metrics}, b"", about

        def count_right() -> Tensor:
            return (self._predict(received).argmax(dim=1) == self.test.targets).sum()[None]

        digest = tensor_digest(*received.values())
        noisy, guarantee = self._release(count_right, digest, round_)
        metrics = {ACCURACY: min(max(float(noisy) / count, 0.0), 1.0)}
        about = f"the accuracy on {count} test samples of its own, {guarantee}"
        epsilon = None if self.limits.rehearsal else self.privacy.epsilon
        return {"count": count, "epsilon": epsilon, "metrics": metrics}, b"", about

    def _predict_own(self, received: State, client: int) -> Tensor:
        """Return the logits of the model of this site, with BatchNorm statistics of its data."""
        federation = self.federation
        name = federation.architectures[client]
        model = federation.server.models[name]
        runner = federation.server.context.runner
        state = {key: received[f"{name}/{key}"].to(runner.device) for key in model.state_dict()}
        state = dict(federation.pool.with_own_statistics(client, state))
        return runner.predict(model, state, self.test.inputs, "running")

    def _predict(self, received: State) -> Tensor:
        """Return the logits of the ensemble of received models on the test data."""
        federation = self.federation
        inputs = self.test.inputs
        logits = []
        server = federation.server
        runner = server.context.runner
        statistics = server_statistics(federation.batchnorm_statistics)
        for name, model in server.models.items():
            state = {key: received[f"{name}/{key}"].to(runner.device) for key in model.state_dict()}
            if self.privacy.epsilon is None:
                logits.append(runner.predict(model, state, inputs, statistics))
                continue
            model.load_state_dict(state)
            with torch.no_grad():
                logits.append(model.head(predict_private_features(model, inputs)).float())  # type: ignore[operator]
        return torch.stack(logits).mean(dim=0)

    def _release(
        self, count_right: Callable[[], Tensor], received: str, round_: int
    ) -> tuple[Tensor, str]:
        """Return the number of right answers with noise, once for the same models and data."""
        what = "the number of its test records with a right answer"
        cost = replace(self.privacy.cost(1.0), what=what)
        seed = None
        if self.limits.rehearsal:
            seed = self.federation.server.context.derive_seed(SeedPurpose.RELEASE_NOISE, round_)

        def release() -> NewRelease:
            return {"right": self.privacy.release(count_right(), 1.0, seed)[0]}, {0: cost}

        key = ReleaseKey(f"{self._key} {received}")
        tensors, total = self.budget.release_once(key, release, cost)
        about = "NOT private (a rehearsal)" if total is None else total.describe_one(cost)
        return tensors["right"], about
