"""What the server computes in a round: predictions of the clients' models, and its students."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, Ensemble, TeacherMemory, Update
from fedaux_pl.callbacks.progress import StageProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.forwards import RecordedForward
from fedaux_pl.engine.inference import BatchNormStatistics, predict_features, predict_logits
from fedaux_pl.engine.lesson import Lesson, chunk_of
from fedaux_pl.engine.settings import Distillation
from fedaux_pl.engine.stage import Job, StageResult, StageRunner
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.averaging import State
from fedaux_pl.modules import DistillationModule
from fedaux_pl.processes import Processes

_DISTILL, _ENSEMBLE = 22, 23  # what a seed is for


@dataclasses.dataclass(frozen=True)
class Teaching:
    """Who teaches in a round, and by which method.

    Attributes:
        algorithm: The method.
        round: Which round it is.
        updates: What the clients of this process sent.
        clients: The ids of those of all processes.
        averages: theta^P.
        scores: s_i on D_distill and the test data, where there are any.
    """

    algorithm: Algorithm
    round: int
    updates: Sequence[Update]
    clients: Sequence[int]
    averages: Mapping[str, State]
    scores: Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Server:
    """The tools of the server.

    Attributes:
        data: The public data, and the test data.
        runner: Runs the distillation.
        progress: Where to show it.
        models: A model of each architecture to try weights on; what is in it does not last.
        distillers: The DistillationModule of each architecture; its weights are replaced.
        settings: How students are distilled.
        optimizer_states: Where each student's optimizer is kept; None to start afresh.
        batchnorm: The BatchNorm statistics of teachers and evaluation.
        memory: What absent clients last said, for methods that remember.
        features: h(x) by architecture and part of the data, where h is fixed.
        forwards: The recorded passes of each architecture, on CUDA.
        seed: Of the run.
        processes: Those that share teachers and students.
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: StageProgress
    models: Mapping[str, nn.Module]
    distillers: Mapping[str, DistillationModule]
    settings: Distillation
    optimizer_states: dict[str, dict[str, Any]] | None
    batchnorm: BatchNormStatistics
    seed: int
    processes: Processes
    memory: TeacherMemory | None = None
    features: dict[tuple[str, str], Tensor] = dataclasses.field(default_factory=dict)
    forwards: dict[str, RecordedForward] = dataclasses.field(default_factory=dict)

    def inputs(self, part: str) -> Tensor:
        """The inputs of D_distill, or of the test data."""
        return self.data.distill_inputs if part == "distill" else self.data.test_examples.inputs

    def predict(
        self, architecture: str, state: State, part: str, inputs: Tensor | None = None
    ) -> Tensor:
        """f(x) of some weights on D_distill or the test data, shape (N, C).

        Args:
            architecture: The name of the model.
            state: Its weights.
            part: ``distill`` or ``test``.
            inputs: Some of that part's inputs, where BatchNorm has running statistics and all of
                the model is trained; None for all of them.
        """
        model = self.models[architecture]
        if not self.distillers[architecture].head_only:
            inputs = self.inputs(part) if inputs is None else inputs
            if (recorded := self._recorded(architecture)) is not None:
                return recorded(state, inputs)
            if self.batchnorm == "running":
                return predict_logits(model, inputs, state=state)
            model.load_state_dict(state)  # its counters move with every batch
            return predict_logits(model, inputs, self.batchnorm)
        model.load_state_dict(state)
        # where g alone is trained, h(x) is the same for everybody and in every round
        place = architecture, part
        if place not in self.features:
            self.features[place] = predict_features(model, self.inputs(part), self.batchnorm)
        with torch.no_grad():
            logits: Tensor = model.head(self.features[place])  # type: ignore[operator]
        return logits.float()

    def _recorded(self, architecture: str) -> RecordedForward | None:
        """The recorded passes of an architecture; None where they are not recorded."""
        model, recorder = self.models[architecture], self.runner.recorder
        if recorder is None or self.batchnorm != "running" or not getattr(model, "alike", False):
            return None
        if architecture not in self.forwards:
            self.forwards[architecture] = RecordedForward(model, recorder)
        return self.forwards[architecture]

    def accuracy(self, architecture: str, state: State) -> float:
        """The accuracy of some weights on the test data."""
        said = self.predict(architecture, state, "test").argmax(dim=1)
        return float(share(said == self.data.test_examples.targets))

    # --- teachers ------------------------------------------------------------------------------

    def soft_labels(
        self,
        teaching: Teaching,
        part: str,
        on_member: Callable[[Tensor], None],
        rows: Tensor | None = None,
    ) -> Tensor:
        """What the clients of a round say together; ``on_member`` sees the logits of each.

        Every process has the answer, and has asked members of its own.

        Args:
            teaching: Who teaches.
            part: ``distill`` or ``test``.
            on_member: Called with the logits of each member.
            rows: The rows of that part to ask for; None for all.
        """
        every, scores = self.inputs(part), teaching.scores.get(part)
        inputs = None if rows is None else every[rows]
        if rows is not None and scores is not None:
            scores = scores[:, rows]

        def predict(architecture: str, state: State) -> Tensor:
            logits = self.predict(architecture, state, part, inputs)
            on_member(logits)
            return logits

        buffers = {
            name: [key for key, _ in model.named_buffers() if key in teaching.averages[name]]
            for name, model in self.models.items()
        }
        memory, clients, device = self.memory, teaching.clients, self.processes.device
        labels = teaching.algorithm.soft_labels(
            Ensemble(
                teaching.updates,
                teaching.averages,
                predict,
                scores,
                buffers,
                derive_seed(self.seed, _ENSEMBLE, teaching.round),
                (len(every) if rows is None else len(rows), len(self.data.classes)),
                self.processes,
                hear=lambda client, logits: (
                    memory.hear(client, part, logits, rows, len(every)) if memory else None
                ),
                absent=lambda: (
                    memory.absent(part, clients, teaching.round, device, rows) if memory else ()
                ),
            )
        )
        if labels is None:
            raise TypeError(f"{teaching.algorithm.name} distils, but its soft_labels gives none")
        return labels

    def examine(self, teaching: Teaching) -> dict[str, Tensor]:
        """How good a round's clients are on the test data, as tensors that need not be there yet.

        Measured are the accuracy of what they say together, and how often one of them says it.
        """
        votes: list[Tensor] = []
        said = self.soft_labels(
            teaching, "test", lambda logits: votes.append(logits.argmax(dim=1))
        ).argmax(dim=1)
        agreed = sum(((vote == said).sum() for vote in votes), said.new_zeros(()))
        agreed, members = self.processes.sum([agreed, said.new_full((), len(votes))])
        return {
            "teachers/accuracy": share(said == self.data.test_examples.targets),
            "teachers/agreement": agreed / (members * len(said)),
        }

    def teach(self, teaching: Teaching) -> Lesson:
        """The soft labels of a round's clients on D_distill: all of them, or as they are needed.

        The latter where a row depends on no other and this process has all clients: sums over
        several processes are one reduction.
        """
        if teaching.algorithm.sees_all:
            everyone = self.processes.merge({update.client: update for update in teaching.updates})
            updates = [everyone[client] for client in teaching.clients]
            teaching = dataclasses.replace(teaching, updates=updates)
        if self.memory is not None:
            self.memory.discard()  # of a round that failed
        by_row = (
            teaching.algorithm.by_row
            and self.processes.world_size == 1
            and self.batchnorm == "running"
            and not any(distiller.head_only for distiller in self.distillers.values())
        )

        def label(rows: Tensor | None) -> Tensor:
            with self.progress.stage("teachers", len(teaching.updates), "client") as stage:
                return self.soft_labels(teaching, "distill", lambda _: stage.update(1), rows)

        x = self.inputs("distill")
        targets = torch.zeros(len(x), len(self.data.classes), device=x.device)
        batches = self.data.distill_batches(targets, self.settings.batch_size, seed=teaching.round)
        chunk = chunk_of(self.models.values())
        lesson = Lesson(batches, label, partial(self.examine, teaching), by_row, chunk)
        if not by_row:
            lesson.finish()
        return lesson

    # --- students ------------------------------------------------------------------------------

    def distill(self, teaching: Teaching) -> tuple[dict[str, State], dict[str, float]]:
        """The student of every architecture, from its average, and what was measured.

        Teachers and students are one stage: they work at the same time wherever they can.
        """
        lesson = self.teach(teaching)
        with lesson.attended():
            own = self._train(lesson, teaching)
        results = self.processes.merge(own)
        measured = {name: float(value) for name, value in lesson.finish().items()}
        states: dict[str, State] = {}
        for name in teaching.averages:
            result = results[name]
            assert result.state is not None  # noqa: S101 - the job said where it starts
            states[name] = result.state
            measured[f"distillation_loss/{name}"] = result.loss
            if self.optimizer_states is not None:
                assert result.optimizer_state is not None  # noqa: S101 - the job asked
                self.optimizer_states[name] = result.optimizer_state
        return states, measured | _certainty(teaching)

    def _train(self, lesson: Lesson, teaching: Teaching) -> dict[str, StageResult]:
        """The students that are this process's."""
        results: dict[str, StageResult] = {}
        carried = self.optimizer_states
        mine = self.processes.share(list(enumerate(teaching.averages.items())))
        with self.progress.stage(
            "distillation", self.settings.epochs * len(mine), "epoch"
        ) as stage:
            for number, (name, average) in mine:
                job = Job(
                    lesson.batches,
                    self.settings.epochs,
                    derive_seed(self.seed, _DISTILL, teaching.round, number),
                    average,
                    None if carried is None else carried.get(name),
                    keep_optimizer=carried is not None,
                )
                [results[name]] = self.runner.run_all(
                    self.distillers[name], [job], on_epoch=lambda loss: stage.update(1, loss=loss)
                )
        return results


def _certainty(teaching: Teaching) -> dict[str, float]:
    """How sure a round's clients are, where they are scored."""
    if not teaching.scores:
        return {}
    certainty = teaching.scores["distill"][list(teaching.clients)]
    weight = certainty / certainty.sum(dim=0)
    return {
        "certainty/mean": float(certainty.mean()),
        "certainty/min": float(certainty.min()),
        "certainty/max": float(certainty.max()),
        "certainty/effective_teachers": float((1 / weight.square().sum(dim=0)).mean()),
    }


def share(hits: Tensor) -> Tensor:
    """The share of true among booleans."""
    return hits.float().mean()
