"""What a site tells about the server's models on test data of its own, if its owner allows it."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedaux_pl.data import Examples
from fedaux_pl.data.cache import tensor_digest
from fedaux_pl.data.fingerprints import keyed_fingerprint, machine_key, record_digests
from fedaux_pl.data.holdings import order_classes
from fedaux_pl.data.input_checks import check_same_kind
from fedaux_pl.data.lazy_inputs import keep_in_host
from fedaux_pl.engine.inference import predict_private_features
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import Federation
from fedaux_pl.federation.evaluation_metrics import ACCURACY
from fedaux_pl.federation.students import ModulesByName
from fedaux_pl.functional.averaging import State
from fedaux_pl.scoring import Ledger, Privacy
from fedaux_pl.scoring.ledger import Entry
from fedaux_pl.scoring.release import VERSION
from fedaux_pl.sites.site_settings import Limits
from fedaux_pl.sites.wire import Answer, Message, read_count, read_tensors


def join_states(students: ModulesByName) -> State:
    """Return the states of the models of all architectures as one."""
    states = {name: model.state_dict() for name, model in students.items()}
    return {f"{name}/{key}": own[key] for name, own in states.items() for key in own}


class SiteEvaluation:
    """Evaluates the ensemble of the server's models on the test data of a site.

    With ``evaluate_epsilon`` the number of correct answers is released with Gaussian noise.
    Sensitivity: 1. Proof: a prediction depends on one record alone, so that a replaced record
    changes at most one answer; the number of test records is public, as |D_i| is.

    Args:
        federation: The federation of the site, whose source has the test data.
        limits: What the site agrees to.

    Raises:
        ConfigurationError: If there is no limit, or predictions depend on several records.
    """

    def __init__(self, federation: Federation, limits: Limits) -> None:
        data, scoring = federation.data, federation.scoring
        self.federation, self.limits = federation, limits
        self.budget = Privacy(epsilon=None) if scoring is None else scoring.privacy
        self.privacy = Privacy(limits.evaluate_epsilon, self.budget.delta)
        if self.privacy.epsilon is not None:
            if (limits.epsilon_limit or self.budget.epsilon) is None:
                raise ConfigurationError(
                    "this method has no epsilon: state with --epsilon_limit what all evaluations "
                    "with --evaluate_epsilon together may cost"
                )
            if federation.batchnorm == "batch":
                raise ConfigurationError(
                    "with batchnorm 'batch' an answer depends on several test records: set it to "
                    "'running', or leave out --evaluate_epsilon"
                )
        test = order_classes(data.private.test(), data.classes)
        check_same_kind(data.all_inputs[0], test.inputs, "training and test data of this site")
        test = Examples(keep_in_host(test.inputs), test.targets, test.classes)
        self.test = test.to(federation.trainer.strategy.root_device)
        self._key, self._digests = "", np.empty(0, np.uint64)
        if self.privacy.epsilon is not None:
            key, labels = machine_key(), self.test.targets
            parts = [record_digests(test.inputs, own, key) for own in (labels, None)]
            self._digests = np.concatenate(parts)
            self._key = (
                f"evaluation {VERSION} {self.privacy.epsilon} {self.privacy.delta} "
                f"{keyed_fingerprint(key, test.inputs, labels)}"
            )

    def answer(self, request: Message) -> Answer:
        """Return the metrics of the models in a request, or the accuracy alone, with noise."""
        federation, epsilon, count = self.federation, self.privacy.epsilon, len(self.test)
        received = read_tensors(request.body, join_states(federation.students))
        fields = {"count": count, "epsilon": epsilon}
        logits = []
        for name, model in federation.server.predictor.models.items():
            like = federation.students[name].state_dict()
            model.load_state_dict({key: received[f"{name}/{key}"] for key in like})
            logits.append(self._predict(model))
        ensemble = torch.stack(logits).mean(dim=0)
        if epsilon is None:
            metrics = federation.evaluation(ensemble, self.test.targets)
            about = f"metrics on {count} test samples of its own: NOT private, no epsilon covers it"
            return {**fields, "metrics": metrics}, b"", about
        correct = (ensemble.argmax(dim=1) == self.test.targets).sum()
        round_ = read_count(request.fields, "round")
        correct, guarantee = self._release(correct, tensor_digest(*received.values()), round_)
        accuracy = min(max(float(correct) / count, 0.0), 1.0)
        about = f"the accuracy on {count} test samples of its own, {guarantee}"
        return {**fields, "metrics": {ACCURACY: accuracy}}, b"", about

    def _predict(self, model: nn.Module) -> Tensor:
        runner, inputs = self.federation.server.predictor.context.runner, self.test.inputs
        if self.privacy.epsilon is None:
            return runner.predict(model, model.state_dict(), inputs, self.federation.batchnorm)
        with torch.no_grad():
            logits: Tensor = model.head(predict_private_features(model, inputs))  # type: ignore[operator]
        return logits.float()

    def _release(self, correct: Tensor, received: str, round_: int) -> tuple[Tensor, str]:
        """Return the number of correct answers with noise, once for the same models and data."""
        if self.limits.rehearsal:
            context = self.federation.server.context
            seed = context.derive_seed(SeedPurpose.RELEASE_NOISE, round_)
            noisy, _ = self.privacy.release(correct[None], 1.0, seed)
            return noisy, "NOT private (a rehearsal)"
        ledger, digests = Ledger(self.federation.data.key_id), self._digests
        with ledger.locked():
            entries = ledger.entries()
            found = [entry for entry in entries if entry.key == f"{self._key} {received}"]
            if not found:
                noisy, record = self.privacy.release(correct[None], 1.0)
                record = replace(record, what="the number of its test records with a right answer")
                self.limits.check_cost(ledger, entries, digests, record, self.budget)
                found = [
                    Entry(f"{self._key} {received}", {"correct": noisy}, {0: record}, {0: digests})
                ]
                ledger.add(found[0])
                entries += found
            total = ledger.total([digests], self.privacy.delta, entries=entries)
        return found[0].heads["correct"], (
            f"(epsilon {self.privacy.epsilon:g}, delta {self.privacy.delta:g})-private; spent so "
            f"far: epsilon {total.epsilon:.4g} in at most {total.releases} about a record"
        )
