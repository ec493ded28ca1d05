"""The federation: Algorithms 1 and 2 of FedAUX (Sattler et al. 2021) under one Trainer.

One epoch of the Trainer is one communication round. Every seed is derived from the run's seed, the
round, the client and the stage, so that the result does not depend on interruptions, on the order
of clients or on the number of processes. The server's models are replaced at the end of a round:
an interrupted run resumes after its last finished round.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, TeacherMemory, Update
from fedaux_pl.callbacks.progress import find_progress
from fedaux_pl.engine.inference import BatchNormStatistics
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.strategy import processes_of
from fedaux_pl.federation import round_metrics
from fedaux_pl.federation.averaging import average_updates, gather_answers
from fedaux_pl.federation.checkpoint import fill_checkpoint, restore_checkpoint
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.door import create_runner
from fedaux_pl.federation.preparation import Preparation, create_extractor
from fedaux_pl.federation.server import Predictor, Server
from fedaux_pl.federation.settings import (
    Distillation,
    LocalTraining,
    Pretraining,
    check_batches,
    check_data,
    check_objects,
    check_settings,
)
from fedaux_pl.federation.students import Students
from fedaux_pl.federation.trainer import check_trainer
from fedaux_pl.functional import derive_seed, sample_clients
from fedaux_pl.models import complete_options, load_backbone, options_of
from fedaux_pl.modules import ClientModule, DistillationModule
from fedaux_pl.modules.classifier_module import TrainedPart
from fedaux_pl.scoring import ReleasedHead, Total
from fedaux_pl.scoring.records import describe_privacy


class Federation(Students):
    """Runs a method of federated learning, one communication round per epoch.

    Args:
        algorithm: The method with its options: FedAvg, FedProx, FedDF, FedBE or FedAUX.
        clients: How many clients train each architecture, e.g. {resnet8: 20}.
        participation: C, the fraction of the clients that take part in a round (at least one).
        train: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
        local: How clients train.
        distillation: How the server distills its students, in methods with distillation.
        pretraining: How h_0 is learned, in methods that start from it.
        optimizer_state: ``reset`` resets all optimizers in every round, ``carry`` keeps the
            optimizer state of each client and each student between rounds.
        batchnorm: The BatchNorm statistics of teachers and evaluation: ``running``, or those of
            the ``batch``, as in the authors' code (transductive: a prediction then depends on the
            other test images of its batch).
        model_options: Further arguments of ``create_model`` for every architecture, e.g.
            {width: 0.5}; those of a single one stand under its name, e.g. {resnet8: {width: 0.5}}.
        seed: The seed of the run, from which all others are derived.

    Example:
        >>> from fedaux_pl import FedDF, Federation
        >>> federation = Federation(FedDF(), clients={"resnet8": 10}, participation=0.3)
        >>> federation.select_clients(1)
        [0, 4, 8]

        ``Trainer(max_epochs=100).fit(federation, datamodule=FederatedDataModule(...))`` runs it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        clients: dict[str, int],
        participation: float = 0.4,
        train: TrainedPart = "full",
        local: LocalTraining = LocalTraining(),  # noqa: B008 - frozen
        distillation: Distillation = Distillation(),  # noqa: B008 - frozen
        pretraining: Pretraining = Pretraining(),  # noqa: B008 - frozen
        optimizer_state: Literal["reset", "carry"] = "reset",
        batchnorm: BatchNormStatistics = "running",
        model_options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(batchnorm)
        self.automatic_optimization = False
        check_objects(algorithm, local, distillation, pretraining)
        check_settings(
            clients,
            participation,
            model_options or {},
            seed,
            train=train,
            optimizer_state=optimizer_state,
            batchnorm=batchnorm,
        )
        self.algorithm = algorithm
        self.clients = clients
        self.participation = participation
        self.train_part: TrainedPart = train
        self.head_only = train == "head"
        self.local = local
        self.distillation = distillation
        self.pretraining = pretraining
        self.carry = optimizer_state == "carry"
        self.model_options = model_options or {}
        self.seed = seed
        self.only_pretrain = False
        self.architectures = [name for name, count in clients.items() for _ in range(count)]
        self.memory = TeacherMemory()
        self._begin()

    def _begin(self) -> None:
        """Forgets everything that a run has learned."""
        self.h0: dict[str, dict[str, Tensor]] = {}  # weights by architecture
        self.h0_accuracy: dict[str, float] = {}
        self.heads: list[ReleasedHead] = []  # ordered by client
        self.total_cost: Total | None = None  # of all releases about the clients' records
        self.scores: dict[str, Tensor] = {}  # s_i(x) on "distill" and "test", shapes (n, N)
        self.memory.load_state_dict({})
        self.server_optimizers: dict[str, dict[str, Any]] = {}
        self.client_optimizers: dict[int, dict[str, Any]] = {}
        self.metrics: dict[str, float] = {}  # of the current round
        self.history: list[dict[str, float]] = []  # the metrics of the finished rounds
        self._round_start: list[dict[Any, Any]] | None = None  # what the current round began with

    def setup(self, stage: str) -> None:
        """Creates the students, once the data are known.

        A Trainer that has finished no round begins a new run: with new students, and without what
        an earlier Trainer has learned. A checkpoint is loaded afterwards.
        """
        self.processes = processes_of(self.trainer)
        check_trainer(self.trainer, self.clients)
        check_data(self.data, self.algorithm, self.clients)
        begins = stage == "fit" and self.current_epoch == 0
        if begins:
            self._begin()
        if begins or not self.students:
            pretrained = self.algorithm.pretrained
            self.create_students(list(self.clients), self.model_options, pretrained, self.seed)
        if stage == "fit" and not self.head_only:
            distillation = self.distillation if self.algorithm.distills else None
            students = dict(self.students.items())
            check_batches(self.data, students, self.architectures, self.local, distillation)

    def configure_optimizers(self) -> list[Any]:
        """No optimizer: every stage of a round creates its own."""
        return []

    def on_fit_start(self) -> None:
        """Creates the clients and the server, and runs Algorithm 1."""
        runner, progress = create_runner(self.trainer), find_progress(self.trainer)
        runner.adopt(self.students)
        context = Context(self.data, runner, progress, self.processes, self.seed, self.carry)
        train, mu = self.train_part, self.algorithm.mu
        modules = self.create_modules(ClientModule, self.local, train=train, mu=mu)
        self.pool = LocalClients(
            context, modules, self.architectures, self.local, self.client_optimizers
        )
        models = {name: module.model for name, module in modules.items()}
        self.server = Server(
            context,
            self.algorithm,
            predictor=Predictor(context, models, self.batchnorm, self.head_only),
            distillers=self.create_modules(DistillationModule, self.distillation, train=train),
            settings=self.distillation,
            memory=self.memory,
            optimizer_states=self.server_optimizers,
        )
        options = {
            name: complete_options(name, **options_of(name, self.clients, self.model_options))
            for name in self.clients
        }
        cache = Path(self.trainer.default_root_dir) / "cache"
        self.prepare(Preparation(context, self.pretraining, self.architectures, options, cache))

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def prepare(self, preparation: Preparation) -> None:
        """Algorithm 1: learn h_0, let every client release its scoring head, compute scores.

        A resumed run has h_0 and the heads from its checkpoint.
        """
        if self.algorithm.pretrained and not self.h0:  # h_0^P <- train_self_supervised(h^P, D_aux)
            students = self.students.items()
            self.h0 = {name: preparation.pretrain(name, student) for name, student in students}
            for name, state in self.h0.items():
                load_backbone(self.students[name], state)
        if self.only_pretrain:
            for name, extractor in self._extractors().items():
                self.h0_accuracy[name] = preparation.knn_accuracy(extractor)
            self.trainer.fit_loop.max_epochs = 0  # no rounds
            return
        scoring = self.algorithm.scoring
        if scoring is not None:
            h0 = self._extractors()
            self.heads, self.total_cost = preparation.release_heads(  # w_i of every client, noisy
                self.pool, scoring, h0, self.algorithm.secret_noise, restored=self.heads
            )
            self.scores = preparation.score(scoring, self.heads, h0)  # s_i(x) for x in D_distill
        self.preparation_bytes = preparation.count_bytes(scoring, self.h0, self.heads)
        for callback in self.federation_callbacks():
            callback.on_federation_prepared(self.trainer, self)

    def _extractors(self) -> dict[str, nn.Module]:
        return {name: create_extractor(self.students[name], self.h0[name]) for name in self.h0}

    def privacy(self) -> list[str]:
        """The guarantee of each kind of release, and what has none; a sentence each."""
        lines = describe_privacy(self.heads, self.total_cost)
        if self.carry:
            lines.append(
                "NOT private: the optimizer states of the clients, which the server's checkpoint "
                "holds with optimizer_state 'carry'"
            )
        return lines

    # --- Algorithm 2 ---------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Algorithm 2: one communication round, which changes nothing if it fails.

        Several processes share the clients, the teachers and the students. ``updates`` hold the
        weights of this process's clients, ``answers`` the sizes and losses of all clients. All but
        the updates is the same in every process.
        """
        t = self.current_epoch + 1
        self.metrics = {"round": t}
        theta = {name: student.state_dict() for name, student in self.students.items()}
        optimizers = self.client_optimizers, self.server_optimizers
        with self.rollback_on_error(*optimizers, self.memory.stored) as self._round_start:
            with self.timed("clients"):  # theta_i <- train(theta^P, D_i) for i in S_t
                selected = self.select_clients(t)
                updates = self.pool.train(t, selected, theta)
            with self.timed("averaging"):  # theta^P <- sum_i |D_i| theta_i / sum_i |D_i|
                answers = gather_answers(updates, selected, self.processes)
                self.metrics |= round_metrics.loss_metrics(answers)
                averages = average_updates(updates, answers, theta, self.processes, self.head_only)
                round_ = self.server.collect_round(t, updates, answers, averages)
            students = averages
            if self.algorithm.distills:
                with self.timed("teachers"):  # y(x) <- softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x))
                    soft_labels = self.server.soft_labels(round_, self.scores)
                with self.timed("distillation"):  # theta^P minimizes D_KL(y, softmax(f(x)))
                    students, losses = self.server.distill(t, averages, soft_labels)
                self.metrics |= losses
            with self.timed("evaluation"):
                self.metrics |= self.server.evaluate(round_, self.scores)
            self.memory.commit(t, round_.clients, self.processes)
            self._complete_metrics(updates)
            for name, state in students.items():
                self.students[name].load_state_dict(state)
        self.count_step()

    def select_clients(self, t: int) -> list[int]:
        """S_t, the clients that take part in round t."""
        seed = derive_seed(self.seed, SeedPurpose.CLIENT_SELECTION, t)
        return sample_clients(len(self.architectures), self.participation, seed)

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Measures the seconds of a stage of the round."""
        return round_metrics.timed(self.metrics, stage, self.device)

    def _complete_metrics(self, updates: Sequence[Update]) -> None:
        """Adds bytes and memory; afterwards all processes have the same metrics."""
        sent = sum(self.processes.gather(round_metrics.update_bytes(updates, self.head_only)))
        self.metrics |= round_metrics.byte_metrics(sent, self.history, self.preparation_bytes)
        if self.algorithm.remember:
            self.metrics |= round_metrics.memory_metrics(self.memory, self.processes)
        self.metrics = self.processes.broadcast(self.metrics)  # seconds differ between processes

    def on_validation_epoch_end(self) -> None:
        """Adds the accuracies to the metrics of the round."""
        self.metrics |= self.compute_accuracies()

    def on_train_epoch_end(self) -> None:
        """Adds the metrics of the round to the history."""
        self.history.append(self.metrics)
        self._round_start = None
        for callback in self.federation_callbacks():
            callback.on_round_end(self.trainer, self)

    # --- Checkpoints ---------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """All settings that determine the result, as plain values; a resumed run has the same."""
        return {
            "algorithm": self.algorithm.settings(),
            "clients": dict(self.clients),
            "participation": self.participation,
            "train": self.train_part,
            "local": asdict(self.local),
            "distillation": asdict(self.distillation),
            "pretraining": asdict(self.pretraining),
            "optimizer_state": "carry" if self.carry else "reset",
            "batchnorm": self.batchnorm,
            "model_options": dict(self.model_options),
            "seed": self.seed,
            "data": self.data.settings(),
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the next round needs besides the students, as tensors and plain values."""
        fill_checkpoint(checkpoint, self, self._round_start)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores an undamaged checkpoint of the same format and settings."""
        restore_checkpoint(checkpoint, self)
