"""What the server computes in a round: its steps, predictions, soft labels and students."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaux_pl.algorithms import (
    Aggregate,
    Algorithm,
    Answer,
    Evidence,
    Round,
    TeacherMemory,
    Teachers,
    Update,
)
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.stage import Job, StageResult
from fedaux_pl.federation.averaging import average_payloads, average_updates, trained_parameters
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.settings import Distillation
from fedaux_pl.federation.state import RunState
from fedaux_pl.functional.averaging import State
from fedaux_pl.models.classifier import is_composition, of_head
from fedaux_pl.modules import DistillationModule


@dataclass(frozen=True)
class Server:
    """Averages the clients' models, predicts with them, and distills students.

    Attributes:
        run: What all parts of the run work with.
        state: What server steps keep, and the remembered teachers.
        algorithm: The method.
        models: A network of each architecture, whose weights are overwritten to predict. Parameters
            that are trained require a gradient.
        distillers: What trains the students; its weights are overwritten, too.
        settings: How students are distilled.
        head_only: Whether only g is trained.
        features: h(x), if h is fixed, by architecture and part of the data.
    """

    run: Run
    state: RunState
    algorithm: Algorithm
    models: Mapping[str, nn.Module]
    distillers: Mapping[str, DistillationModule]
    settings: Distillation
    head_only: bool = False
    features: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    @property
    def memory(self) -> TeacherMemory | None:
        """The remembered teachers, in methods that remember them."""
        if not self.algorithm.remember:
            return None
        return TeacherMemory(self.state.teachers, self.run.processes)

    def payloads(self) -> dict[str, State]:
        """Return what the server sends to the clients of each architecture besides its model."""
        states = self.state.server_states
        return {name: self.algorithm.server_payload(states.get(name, {})) for name in self.models}

    def average(
        self, theta: Mapping[str, State], updates: Sequence[Update], answers: Sequence[Answer]
    ) -> dict[str, State]:
        """Average the clients' models by |D_i|, and take the method's server step from theta^P.

        ``updates`` are those of this process's clients, ``answers`` those of all processes'
        clients. The averages are the same in every process.
        """
        processes = self.run.processes
        states = self.state.server_states
        averages = dict(theta)
        sizes = zip(self.run.architectures, self.run.data.client_sizes, strict=True)
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
            step = self.algorithm.server_step(aggregate)
            if not isinstance(step, tuple) or len(step) != 2:
                raise TypeError(
                    f"{type(self.algorithm).__name__}.server_step must return two dictionaries: "
                    "the new parameters, and what it keeps for the next step"
                )
            parameters, states[name] = step
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
        t: int,
        updates: Sequence[Update],
        answers: Sequence[Answer],
        averages: Mapping[str, State],
    ) -> Round:
        """Return the models of round t, of which the method chooses the teachers."""
        buffers = {
            name: [key for key, _ in model.named_buffers() if key in averages[name]]
            for name, model in self.models.items()
        }
        seed = self.run.derive_seed(SeedPurpose.ENSEMBLE, t)
        return Round(t, updates, answers, averages, buffers, seed, self.run.processes)

    def inputs(self, part: str) -> Inputs:
        """Return the inputs of D_distill (``distill``) or of the evaluated data."""
        data = self.run.data
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
        return self.run.runner.predict(model, state, self.inputs(part))

    def keep_features(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep h_0(x) for the rounds, in which h_0 stays and would be computed again.

        This holds if only heads are trained, in 32-bit precision.

        Args:
            parts: h_0(x) by part of the data and architecture, in 32-bit precision.
        """
        is_exact = self.run.runner.trainer.precision == "32-true"
        if not (self.head_only and is_exact):
            return
        for part, features in parts.items():
            for name, values in features.items():
                self.features[name, part] = values

    def fixed_features(self, architecture: str, state: State, part: str) -> Tensor:
        """Return h(x) on one part of the data, which is computed once, shape (N, d)."""
        key = architecture, part
        if key not in self.features:
            model = self.models[architecture]
            model.load_state_dict(state)
            with self.run.runner.preparing(f"preparing {architecture}: features"):
                self.features[key] = predict_features(model, self.inputs(part))
        return self.features[key]

    def teachers(
        self,
        models: Round,
        evidence: Evidence,
        part: str = "distill",
        on_prediction: Callable[[Tensor], None] = lambda _: None,
    ) -> Teachers:
        """Return the teachers of a round, which predict while they are iterated over.

        Args:
            models: The models of the round.
            evidence: The certainty of the clients, from their releases.
            part: The data to label: ``distill``, or ``evaluation``.
            on_prediction: Gets the logits of each model that this process predicts with.
        """

        def predict(architecture: str, state: State) -> Tensor:
            logits = self.predict(architecture, state, part)
            on_prediction(logits)
            return logits

        return Teachers(
            self.algorithm.members(models),
            predict,
            shape=(len(self.inputs(part)), len(self.run.data.classes)),
            part=part,
            round=models.number,
            certainty=evidence.certainty.get(part),
            class_probabilities=evidence.class_probabilities.get(part),
            memory=self.memory,
            architectures=self.run.architectures,
            sizes=self.run.data.client_sizes,
            processes=self.run.processes,
        )

    def soft_labels(self, models: Round, evidence: Evidence) -> Tensor:
        """Return the method's soft labels on D_distill, shape (N, C)."""
        with self.run.progress.stage("teachers", len(models.updates), "client") as stage:
            teachers = self.teachers(models, evidence, on_prediction=lambda _: stage.update(1))
            soft_labels = self.algorithm.soft_labels(teachers)
        if bool(soft_labels.isnan().any()):
            raise FloatingPointError(
                f"the clients' predictions hold NaN or infinity in round {models.number}: lower "
                "local.lr (--model.local.lr), or check the weights of teachers in a method of yours"
            )
        return soft_labels

    def forget_teachers(self, models: Round) -> int:
        """Forget outdated teachers after a round; return how many clients were dropped."""
        if self.memory is None:
            return 0
        return self.memory.forget(models.number, models.clients)

    def distill(
        self,
        t: int,
        theta: Mapping[str, State],
        averages: Mapping[str, State],
        soft_labels: Tensor,
    ) -> tuple[dict[str, State], dict[str, float]]:
        """Return the weights of each student, trained from its average, and the losses to log."""
        results: dict[str, StageResult] = {}
        mine = self.run.processes.local(list(enumerate(averages)))
        total = self.settings.epochs * len(mine)
        with self.run.progress.stage("distillation", total, "epoch") as stage:
            for number, name in mine:
                seed = self.run.derive_seed(SeedPurpose.DISTILLATION, t, number)
                job = self._job(t, name, averages[name], soft_labels, seed)
                [results[name]] = self.run.runner.run_all(
                    self.distillers[name], [job], on_epoch=lambda loss: stage.update(1, loss=loss)
                )
        results = self.run.processes.merge(results)
        states: dict[str, State] = {}
        losses: dict[str, float] = {}
        for name in averages:
            state = results[name].state
            states[name] = self.algorithm.new_model(theta[name], averages[name], state)
            losses[f"distillation_loss/{name}"] = results[name].loss
        return states, losses

    def _job(self, t: int, architecture: str, state: State, soft_labels: Tensor, seed: int) -> Job:
        """Return the distillation of an architecture, which starts at ``state``."""
        batches = self.run.data.distill_batches(
            soft_labels,
            self.settings.batch_size,
            t,
            augmentation=self.settings.augment,
        )
        if self.distillers[architecture].reads_features:
            features = self.fixed_features(architecture, state, "distill")
            batches.tensors = (features, *batches.tensors[1:])
        lr = self.run.lr_of(self.settings, t)
        return Job(batches, self.settings.epochs, seed, state, keep_optimizer=False, lr=lr)
