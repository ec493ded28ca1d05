"""What the server computes in a round: its steps, predictions, soft labels and students."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaux_pl.algorithms import Aggregate, Algorithm, Answer, Distilled, Ensemble, Round, Update
from fedaux_pl.algorithms.memory import absent_clients
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.stage import Job, StageResult
from fedaux_pl.federation.averaging import average_payloads, average_updates, trained_parameters
from fedaux_pl.federation.client_pool import Votes
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.settings import Distillation
from fedaux_pl.functional.averaging import State
from fedaux_pl.models.classifier import is_composition, of_head
from fedaux_pl.modules import DistillationModule

AskClients = Callable[[Mapping[str, State], Mapping[str, State], Sequence[float]], Votes]
"""``ClientPool.vote`` of a round."""
_LEAST = 1e-12  # of a sum of scores: a client's can be 0


@dataclass(frozen=True)
class Server:
    """Averages models, aggregates predictions into soft labels and distills students."""

    context: Context
    algorithm: Algorithm
    models: Mapping[str, nn.Module]  # for predictions; their trained parameters require a gradient
    distillers: Mapping[str, DistillationModule]  # weights of both are overwritten
    settings: Distillation
    head_only: bool = False
    # h(x), if it is fixed, by architecture and part of the data
    features: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def payloads(self) -> dict[str, State]:
        """Return what the server sends to the clients of each architecture besides its model."""
        states = self.context.carried.server_states
        return {name: self.algorithm.server_payload(states.get(name, {})) for name in self.models}

    def average(
        self, theta: Mapping[str, State], updates: Sequence[Update], answers: Sequence[Answer]
    ) -> dict[str, State]:
        """Average the clients' models by |D_i|, and take the method's server step from theta^P.

        ``updates`` are those of this process's clients, ``answers`` those of all processes'
        clients. The averages are the same in every process.
        """
        processes = self.context.processes
        states = self.context.carried.server_states
        averages = dict(theta)
        sizes = zip(self.context.architectures, self.context.data.client_sizes, strict=True)
        samples = Counter[str]()  # of the clients of each architecture
        for name, size in sizes:
            samples[name] += size
        for name in dict.fromkeys(answer.architecture for answer in answers):
            members = [answer for answer in answers if answer.architecture == name]
            group = [update for update in updates if update.architecture == name]
            average = average_updates(group, members, theta[name], processes, self.head_only)
            aggregate = Aggregate(
                theta=trained_parameters(self.models[name], theta[name]),
                average=trained_parameters(self.models[name], average),
                payload=average_payloads(group, members, processes),
                fraction=sum(answer.size for answer in members) / samples[name],
                state=states.get(name, {}),
            )
            parameters, states[name] = self.algorithm.server_step(aggregate)
            averages[name] = {**average, **parameters}
            if parameters is aggregate.average:  # no step of its own: the average is checked
                continue
            finite = torch.stack([tensor.isfinite().all() for tensor in parameters.values()])
            if not bool(finite.all()):  # one transfer from the device
                raise FloatingPointError(
                    f"the server step of {type(self.algorithm).__name__} gave NaN or infinity: "
                    "lower its server_lr (--model.algorithm.server_lr)"
                )
        return averages

    def collect_round(
        self,
        number: int,
        updates: Sequence[Update],
        answers: Sequence[Answer],
        averages: Mapping[str, State],
        **released: Mapping[str, Tensor],
    ) -> Round:
        """Return the models of round t, with all processes' updates for methods that need them.

        ``released`` are the ``scores`` and ``labels`` of ``Round``.
        """
        clients = [answer.client for answer in answers]
        if self.algorithm.needs_all_updates:
            merged = self.context.processes.merge({update.client: update for update in updates})
            updates = [merged[client] for client in clients]
        buffers = {
            name: [key for key, _ in model.named_buffers() if key in averages[name]]
            for name, model in self.models.items()
        }
        return Round(
            number,
            updates,
            clients,
            averages,
            buffers,
            seed=self.context.derive_seed(SeedPurpose.ENSEMBLE, number),
            **released,
        )

    def inputs(self, part: str) -> Inputs:
        """Return the inputs of D_distill (``distill``) or of the evaluated data."""
        data = self.context.data
        return data.distill_inputs if part == "distill" else data.evaluation_examples.inputs

    def predict(
        self, architecture: str, state: State, part: str, rows: Tensor | None = None
    ) -> Tensor:
        """Return f(x) with the given weights on one part of the data, shape (N, C).

        With ``rows``, the positions of M samples, a head predicts these alone, shape (M, C).
        """
        model: Any = self.models[architecture]
        if self.head_only and is_composition(model):
            features = self.fixed_features(architecture, state, part)
            features = features if rows is None else features[rows]
            head = {key.removeprefix("head."): state[key] for key in state if of_head(key)}
            logits: Tensor = functional_call(model.head, head, (features,))
            return logits.float()
        return self.context.runner.predict(model, state, self.inputs(part))

    def keep_features(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep h(x), by part of the data and architecture."""
        for part, features in parts.items():
            for name, values in features.items():
                self.features[name, part] = values

    def fixed_features(self, architecture: str, state: State, part: str) -> Tensor:
        """Return h(x) on one part of the data, which is computed once, shape (N, d)."""
        key = architecture, part
        if key not in self.features:
            model = self.models[architecture]
            model.load_state_dict(state)
            with self.context.runner.preparing(f"preparing {architecture}: features"):
                self.features[key] = predict_features(model, self.inputs(part))
        return self.features[key]

    def soft_labels(self, round_: Round) -> Tensor:
        """Return the soft labels on D_distill, shape (N, C)."""
        with self.context.progress.stage("teachers", len(round_.updates), "client") as stage:
            soft_labels = self._aggregate(round_, "distill", lambda _: stage.update(1))
        if bool(soft_labels.isnan().any()):
            raise FloatingPointError(
                f"the clients' predictions hold NaN or infinity in round {round_.number}: lower "
                "local.lr (--model.local.lr)"
            )
        return soft_labels

    def evaluate(self, round_: Round) -> dict[str, float]:
        """Return the accuracy of the averages before distillation, and metrics of the teachers.

        Only measured rounds are evaluated. The logits of other rounds' clients on the evaluated
        data are never computed: of the absent clients, those that last took part in a measured
        round count as teachers here. If every round is measured, these are all.
        """
        metrics = {}
        for name, state in round_.averages.items():
            classes = self.predict(name, state, "evaluation").argmax(dim=1)
            metrics[f"averaged_accuracy/{name}"] = self._accuracy(classes)
        if round_.labels and self.algorithm.trains_clients:
            classes = round_.labels["evaluation"].argmax(dim=1)
            metrics["statistics/accuracy"] = self._accuracy(classes)
        if self.algorithm.distills:
            metrics |= self._evaluate_teachers(round_)
        return metrics

    def _accuracy(self, classes: Tensor) -> float:
        return float((classes == self.context.data.evaluation_examples.targets).float().mean())

    def _evaluate_teachers(self, round_: Round) -> dict[str, float]:
        """Return how good soft labels are on labeled data, and how certain the teachers are."""
        votes: list[Tensor] = []
        labels = self._aggregate(
            round_, "evaluation", lambda logits: votes.append(logits.argmax(dim=1))
        ).argmax(dim=1)
        counts = labels.new_tensor([sum((vote == labels).sum() for vote in votes), len(votes)])
        [(agreeing, members)] = self.context.processes.sum([counts])
        metrics = {"teachers/accuracy": self._accuracy(labels)}
        if members:  # with real sites a round may have no answer
            metrics["teachers/agreement"] = float(agreeing / (members * len(labels)))
        if round_.scores and round_.clients:
            certainty = round_.scores["distill"][list(round_.clients)]
            metrics |= {
                "certainty/mean": float(certainty.mean()),
                "certainty/min": float(certainty.min()),
                "certainty/max": float(certainty.max()),
                "certainty/effective_teachers": self._effective_teachers(round_),
            }
        return metrics

    def _effective_teachers(self, round_: Round) -> float:
        """Return the mean over D_distill of 1 / sum_i w_i(x)^2, remembered teachers included."""
        context = self.context
        absent = absent_clients(
            context.carried.memory, "distill", round_.clients, context.processes
        )
        scores = round_.scores["distill"][[*round_.clients, *absent]]
        weights = scores / scores.sum(dim=0).clamp(min=_LEAST)
        return float((1 / weights.square().sum(dim=0)).mean())

    def _aggregate(
        self, round_: Round, part: str, on_prediction: Callable[[Tensor], None]
    ) -> Tensor:
        """Return the method's soft labels on one part of the data, the same in every process.

        ``on_prediction`` gets the logits of each model that this process predicts with.
        """

        def predict(architecture: str, state: State) -> Tensor:
            logits = self.predict(architecture, state, part)
            on_prediction(logits)
            return logits

        ensemble = Ensemble(
            round_,
            predict,
            shape=(len(self.inputs(part)), len(self.context.data.classes)),
            scores=round_.scores.get(part),
            labels=round_.labels.get(part),
            part=part,
            memory=self.context.carried.memory,
            processes=self.context.processes,
        )
        return self.algorithm.soft_labels(ensemble)

    def distill(
        self, round_: Round, soft_labels: Tensor
    ) -> tuple[dict[str, State], dict[str, float]]:
        """Return the weights of each student, trained from its average, and the losses to log."""
        results: dict[str, StageResult] = {}
        mine = self.context.processes.local(list(enumerate(round_.averages)))
        total = self.settings.epochs * len(mine)
        with self.context.progress.stage("distillation", total, "epoch") as stage:
            for number, name in mine:
                seed = self.context.derive_seed(SeedPurpose.DISTILLATION, round_.number, number)
                job = self._job(round_, name, soft_labels, seed)
                [results[name]] = self.context.runner.run_all(
                    self.distillers[name], [job], on_epoch=lambda loss: stage.update(1, loss=loss)
                )
        results = self.context.processes.merge(results)
        states: dict[str, State] = {}
        losses: dict[str, float] = {}
        for name in round_.averages:
            states[name] = results[name].state
            losses[f"distillation_loss/{name}"] = results[name].loss
        return states, losses

    def _job(self, round_: Round, architecture: str, soft_labels: Tensor, seed: int) -> Job:
        """Return the distillation of the average of an architecture."""
        state = round_.averages[architecture]
        batches = self.context.data.distill_batches(
            soft_labels,
            self.settings.batch_size,
            round_.number,
            augmentation=self.settings.augment,
        )
        if self.distillers[architecture].reads_features:
            features = self.fixed_features(architecture, state, "distill")
            batches.tensors = (features, *batches.tensors[1:])
        lr = self.context.lr_of(self.settings, round_.number)
        return Job(batches, self.settings.epochs, seed, state, keep_optimizer=False, lr=lr)

    def blend(
        self, averages: Mapping[str, State], students: Mapping[str, State], ask: AskClients
    ) -> tuple[Mapping[str, State], Mapping[str, float]]:
        """Return the method's new models between averages and students, and metrics to log."""
        carried = self.context.carried
        asked = 0

        def ask_all(weights: Sequence[float]) -> Mapping[str, Tensor]:
            nonlocal asked
            votes = ask(averages, students, weights)
            asked += votes.clients
            return votes.sums

        distilled = Distilled(averages, students, self.settings.blend, ask_all, carried.votes)
        blended = self.algorithm.blend(distilled)
        carried.votes = blended.votes
        metrics = dict(blended.metrics)
        if asked:
            metrics["votes/clients"] = asked
        return blended.students, metrics
