"""What the server computes in a round: predictions of the clients' models, and its students."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, Ensemble, TeacherMemory, Update
from fedaux_pl.callbacks.progress import StageProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.forwards import RecordedForward
from fedaux_pl.engine.inference import BatchNormStatistics, predict_features, predict_logits
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

    def predict(self, architecture: str, state: State, part: str) -> Tensor:
        """f(x) of some weights on D_distill or the test data, shape (N, C)."""
        model = self.models[architecture]
        head_only = self.distillers[architecture].head_only
        recorded = None if head_only else self._recorded(architecture)
        if recorded is not None:
            return recorded(state, self.inputs(part))
        model.load_state_dict(state)
        if not head_only:
            return predict_logits(model, self.inputs(part), self.batchnorm)
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
        return share(said == self.data.test_examples.targets)

    def soft_labels(
        self, teaching: Teaching, part: str, on_member: Callable[[Tensor], None]
    ) -> Tensor:
        """What the clients of a round say together; ``on_member`` sees the logits of each.

        Every process has the answer, and has asked members of its own.
        """

        def predict(architecture: str, state: State) -> Tensor:
            logits = self.predict(architecture, state, part)
            on_member(logits)
            return logits

        buffers = {
            name: [key for key, _ in model.named_buffers() if key in teaching.averages[name]]
            for name, model in self.models.items()
        }
        seed = derive_seed(self.seed, _ENSEMBLE, teaching.round)
        memory, clients = self.memory, teaching.clients
        shape = (len(self.inputs(part)), len(self.data.classes))
        labels = teaching.algorithm.soft_labels(
            Ensemble(
                teaching.updates,
                teaching.averages,
                predict,
                teaching.scores.get(part),
                buffers,
                seed,
                shape,
                self.processes,
                hear=lambda client, logits: memory.hear(client, part, logits) if memory else None,
                absent=lambda: (
                    memory.absent(part, clients, teaching.round, self.processes.device)
                    if memory
                    else ()
                ),
            )
        )
        if labels is None:
            raise TypeError(f"{teaching.algorithm.name} distils, but its soft_labels gives none")
        return labels

    def teach(self, teaching: Teaching) -> Tensor:
        """The soft labels of a round's clients on D_distill."""
        if self.memory is not None:
            self.memory.discard()  # of a round that failed
        with self.progress.stage("teachers", len(teaching.updates), "client") as stage:
            return self.soft_labels(teaching, "distill", lambda _: stage.update(1))

    def gathered(self, teaching: Teaching) -> Teaching:
        """The same with the updates of all processes, for methods that see them all."""
        if not teaching.algorithm.sees_all:
            return teaching
        everyone = self.processes.merge({update.client: update for update in teaching.updates})
        updates = [everyone[client] for client in teaching.clients]
        return dataclasses.replace(teaching, updates=updates)

    def assess(self, teaching: Teaching) -> dict[str, float]:
        """How good the teaching of a round's clients is, by what they say about the test data."""
        votes: list[Tensor] = []
        said = self.soft_labels(
            teaching, "test", lambda logits: votes.append(logits.argmax(dim=1))
        ).argmax(dim=1)
        agreeing = said.new_tensor([int(sum((vote == said).sum() for vote in votes)), len(votes)])
        [(agreed, members)] = self.processes.sum([agreeing])
        measured = {
            "teachers/accuracy": share(said == self.data.test_examples.targets),
            "teachers/agreement": float(agreed / (members * len(said))),
        }
        if teaching.scores:
            certainty = teaching.scores["distill"][list(teaching.clients)]
            weight = certainty / certainty.sum(dim=0)
            measured |= {
                "certainty/mean": float(certainty.mean()),
                "certainty/min": float(certainty.min()),
                "certainty/max": float(certainty.max()),
                "certainty/effective_teachers": float((1 / weight.square().sum(dim=0)).mean()),
            }
        return measured

    def distill(
        self, round_: int, averages: Mapping[str, State], targets: Tensor
    ) -> tuple[dict[str, State], dict[str, float]]:
        """The student of every architecture, from its average, and the losses."""
        results: dict[str, StageResult] = {}
        carried = self.optimizer_states
        mine = self.processes.share(list(enumerate(averages.items())))
        with self.progress.stage(
            "distillation", self.settings.epochs * len(mine), "epoch"
        ) as stage:
            for number, (name, average) in mine:
                job = Job(
                    self.data.distill_batches(targets, self.settings.batch_size, seed=round_),
                    self.settings.epochs,
                    derive_seed(self.seed, _DISTILL, round_, number),
                    average,
                    None if carried is None else carried.get(name),
                    keep_optimizer=carried is not None,
                )
                [results[name]] = self.runner.run_all(
                    self.distillers[name], [job], on_epoch=lambda loss: stage.update(1, loss=loss)
                )
        results = self.processes.merge(results)
        states: dict[str, State] = {}
        for name in averages:
            result = results[name]
            assert result.state is not None  # noqa: S101 - the job said where it starts
            states[name] = result.state
            if carried is not None:
                assert result.optimizer_state is not None  # noqa: S101 - the job asked
                carried[name] = result.optimizer_state
        return states, {f"distillation_loss/{name}": results[name].loss for name in averages}


def share(hits: Tensor) -> float:
    """The share of true among booleans."""
    return float(hits.float().mean())
