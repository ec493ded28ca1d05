"""The federation: Algorithms 1 and 2 of FedAUX (Sattler et al. 2021) under one Trainer.

One epoch of the Trainer is one communication round. Every seed is derived from the run's seed, the
round, the client and the stage, so that the result does not depend on interruptions, on the order
of clients or on the number of processes. The server's models are replaced at the end of a round:
an interrupted run resumes after its last finished round.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, OneRelease, ServerState, TeacherMemory, Update
from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.engine.inference import BatchNormStatistics
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.strategy import processes_of
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import round_metrics
from fedaux_pl.federation.assembly import assemble
from fedaux_pl.federation.averaging import average_updates, gather_answers
from fedaux_pl.federation.checkpoint import (
    fill_checkpoint,
    load_federation,
    restore_checkpoint,
)
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.hyperparameters import describe
from fedaux_pl.federation.preparation import Preparation, create_extractor
from fedaux_pl.federation.server_features import ServerFeatures
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
from fedaux_pl.federation.teaching import teach
from fedaux_pl.federation.trainer import check_options, check_trainer
from fedaux_pl.functional import derive_seed, sample_clients
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import load_backbone
from fedaux_pl.modules.classifier_module import TrainedPart
from fedaux_pl.modules.state_dicts import copy_state
from fedaux_pl.processes import choose_threads
from fedaux_pl.scoring import PrivacySpent, ReleasedHead
from fedaux_pl.scoring.records import describe_all, describe_privacy


class Federation(Students):
    """Runs a method of federated learning, one communication round per epoch.

    A round logs ``val/accuracy``, measured on the validation data, or ``accuracy``, measured on the
    test data if there are no validation data; both also for each architecture, as in
    ``accuracy/resnet8``, and ``client_loss/mean`` and ``distillation_loss/resnet8``. Callbacks can
    monitor these. A test logs ``accuracy``.

    Args:
        algorithm: The method with its options, such as FedAvg(), FedDF() or FedAUX().
        clients: How many clients train each architecture, e.g. {resnet8: 20}.
        participation: C, the fraction of the clients that take part in a round (at least one).
        trained: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
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
        threads: The number of CPU threads of each process, on which the rounding of sums depends.
            None for that of the resumed checkpoint, or else that of ``choose_threads``:
            OMP_NUM_THREADS, 1 if all networks are small, or the number of cores, at most 4.

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
        trained: TrainedPart = "full",
        local: LocalTraining = LocalTraining(),  # noqa: B008 - frozen
        distillation: Distillation = Distillation(),  # noqa: B008 - frozen
        pretraining: Pretraining = Pretraining(),  # noqa: B008 - frozen
        optimizer_state: Literal["reset", "carry"] = "reset",
        batchnorm: BatchNormStatistics = "running",
        model_options: dict[str, Any] | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        super().__init__(batchnorm)
        self.automatic_optimization = False
        check_objects(algorithm, local, distillation, pretraining)
        check_settings(
            clients,
            participation,
            model_options or {},
            seed,
            threads,
            trained=trained,
            optimizer_state=optimizer_state,
            batchnorm=batchnorm,
        )
        algorithm.check_architectures(clients)
        self.algorithm = algorithm
        self.clients = clients
        self.participation = participation
        self.trained: TrainedPart = trained
        self.head_only = trained == "head"
        self.local = local
        self.distillation = distillation
        self.pretraining = pretraining
        self.carry = optimizer_state == "carry"
        self.model_options = model_options or {}
        self.seed = seed
        self.threads = self._given_threads = threads
        self._outer_threads = torch.get_num_threads()
        self.only_pretrain = False
        self.create_pool: Callable[..., Any] = LocalClients  # or the ClientPool of real sites
        self.architectures = [name for name, count in clients.items() for _ in range(count)]
        self.memory = TeacherMemory(discount=algorithm.discount)
        self.loaded_from: Path | None = None
        self.save_hyperparameters(describe(self.arguments()), logger=False)
        self._begin()

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        *,
        weights_only: bool | None = None,  # noqa: ARG003 - Lightning's
        **changed: Any,
    ) -> Self:
        """Creates the federation of a checkpoint, which predicts: ``federation(inputs)``.

        ``Trainer(...).fit(federation, datamodule=data, ckpt_path=checkpoint_path)`` continues it.

        Args:
            checkpoint_path: A checkpoint that this package wrote.
            map_location: The device of the models; None for the CPU.
            weights_only: Without effect: nothing in a checkpoint is ever executed.
            **changed: Arguments of the constructor that replace those of the checkpoint.

        Raises:
            ConfigurationError: If the checkpoint is damaged or not of a federation, or if its
                method or a network is a class of yours whose module is not imported.
        """
        return load_federation(cls, Path(checkpoint_path), map_location, changed)

    def _begin(self) -> None:
        """Forgets everything that a run has learned."""
        self.h0: dict[str, dict[str, Tensor]] = {}  # weights by architecture
        self.h0_accuracy: dict[str, float] = {}
        self.heads: list[ReleasedHead] = []  # ordered by client
        self.total_cost: PrivacySpent | None = None  # of all releases about the clients' records
        self.scores: dict[str, Tensor] = {}  # s_i(x) on the parts of the data, shapes (n, N)
        self.labels: dict[str, Tensor] = {}  # (N, C), of a teacher that is made of releases alone
        self.memory.load_state_dict({})
        self.server_optimizers: dict[str, dict[str, Any]] = {}
        self.client_optimizers: dict[int, dict[str, Any]] = {}
        self.server_states: dict[str, ServerState] = {}  # of the method's server steps
        self.client_states: dict[int, State] = {}  # what clients keep in methods with a payload
        self.metrics: dict[str, float] = {}  # of the current round
        self.history: list[dict[str, float]] = []  # the metrics of the finished rounds
        self._round_start: list[dict[Any, Any]] | None = None  # what the current round began with

    def setup(self, stage: str) -> None:
        """Creates the students, once the data are known.

        A Trainer that has finished no round begins a new run: with new students, and without what
        an earlier Trainer has learned. A checkpoint is loaded afterwards. A federation that was
        loaded keeps its students.
        """
        self.processes = processes_of(self.trainer)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if stage != "fit" and self.students and data is None:
            return  # evaluates or predicts with dataloaders
        check_data(self.data, self.algorithm, self.clients)
        check_trainer(self.trainer, self.clients, self.data.validation_examples is not None)
        if stage == "fit":
            optimizer = self.local.optimizer_settings.plain()
            self.algorithm.check_clients(optimizer, str(self.trainer.precision))
        begins = stage == "fit" and self.current_epoch == 0
        self.trainer.log_every_n_steps = 1  # type: ignore[attr-defined]  # a round is one batch
        if self.loaded_from is not None:
            self.train()
        elif begins:
            self._begin()
            self.students.clear()
        if not self.students:
            self.create_students(
                list(self.clients),
                self.model_options,
                self.seed,
                input_shape=self.data.input_shape,
                classes=self.data.classes,
                pretrained=self.algorithm.pretrained,
            )
            for student in self.students.values():
                self.data.check_model(student)
        self._outer_threads = torch.get_num_threads()
        self.use_threads(self.processes.broadcast(choose_threads(self.students.values())))
        if stage == "fit" and not self.head_only:
            distillation = self.distillation if self.algorithm.distills else None
            students = dict(self.students.items())
            check_batches(self.data, students, self.architectures, self.local, distillation)

    def use_threads(self, threads: int) -> None:
        """Computes with that number of CPU threads, unless the constructor was given another."""
        self.threads = self.hparams["threads"] = self._given_threads or threads
        torch.set_num_threads(self.threads)

    def teardown(self, stage: str) -> None:
        """Restores the number of CPU threads that the program had before."""
        torch.set_num_threads(self._outer_threads)

    def configure_callbacks(self) -> list[Callback]:
        """The report of the run, unless the Trainer has one.

        Lightning calls this before its own checks, whose advice is not for a federation.
        """
        if self.trainer.state.fn == TrainerFn.FITTING:
            check_options(self.trainer)
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        has_report = any(isinstance(callback, FederationReport) for callback in callbacks)
        return [] if has_report else [FederationReport()]

    def configure_optimizers(self) -> list[Any]:
        """No optimizer: every stage of a round creates its own."""
        return []

    def on_fit_start(self) -> None:
        """Creates the clients and the server, and runs Algorithm 1."""
        if self.loaded_from is not None and self.trainer.ckpt_path is None:
            raise ConfigurationError(
                f"this federation was loaded from {self.loaded_from} after {len(self.history)} "
                "rounds, which a new run would forget: give fit the same ckpt_path to continue it, "
                "or create a new Federation"
            )
        self.loaded_from = None
        self.pool, self.server, self.server_steps, preparation = assemble(self)
        self.prepare(preparation)

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
            for name, extractor in self._extractors().items() if self.data.holds is None else ():
                self.h0_accuracy[name] = preparation.knn_accuracy(extractor)
            self.trainer.fit_loop.max_epochs = 0  # no rounds
            return
        self.preparation, self.scores, self.labels = preparation, {}, {}
        self._release_heads()
        scoring = self.algorithm.scoring
        self.preparation_bytes = preparation.count_bytes(scoring, self.h0, self.heads)
        for callback in federation_callbacks(self.trainer):
            callback.on_federation_prepared(self.trainer, self)

    def _release_heads(self) -> None:
        """The heads of all clients; in later rounds those of sites that have not been there yet."""
        scoring, is_complete = self.algorithm.scoring, len(self.heads) == len(self.architectures)
        if scoring is None or (is_complete and (self.scores or self.labels)):
            return
        runner, begins = self.preparation.context.runner, not self.heads
        features = ServerFeatures(self.data, self._extractors(), runner.predict_features)
        self.heads, self.total_cost = self.preparation.release_heads(  # w_i of every client, noisy
            self.pool, scoring, features, restored=self.heads
        )
        if isinstance(self.algorithm, OneRelease):
            self.labels, heads = teach(self.preparation, self.algorithm, self.heads, features)
            for name, head in heads.items() if begins else ():
                self.students[name].load_state_dict(head, strict=False)
        else:  # s_i(x) for x in D_distill
            self.scores = self.preparation.score(scoring, self.heads, features)

    def _extractors(self) -> dict[str, nn.Module]:
        return {name: create_extractor(self.students[name], self.h0[name]) for name in self.h0}

    def privacy(self) -> list[str]:
        """The guarantee of each kind of release, and what has none; a sentence each."""
        lines = describe_privacy(self.heads, self.total_cost)
        if isinstance(self.algorithm, OneRelease):
            besides = "and what the next line says" if self.holds_out else ""
            lines = describe_all(self.heads, self.algorithm.scoring, self.total_cost, besides)
        if self.carry:
            lines.append(
                "NOT private: the optimizer states of the clients, which the server's checkpoint "
                "holds with optimizer_state 'carry'"
            )
        if self.holds_out:
            lines.append(
                "NOT private: the accuracies on the validation data that clients hold out, and the "
                "choice of a round by them"
            )
            if self.algorithm.remember:
                lines.append(
                    "NOT private: the clients' logits on the validation data that clients hold "
                    "out, which the server's checkpoint holds"
                )
        if self.algorithm.has_payload:
            lines.append(
                "NOT private: what clients send besides their weights and what they keep between "
                "rounds, which the server's checkpoint holds"
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
        theta = {name: copy_state(student) for name, student in self.students.items()}
        optimizers = self.client_optimizers, self.server_optimizers
        kept = self.memory.stored, self.server_states, self.client_states
        with self.rollback_on_error(*optimizers, *kept) as self._round_start:
            with self.timed("clients"):  # theta_i <- train(theta^P, D_i) for i in S_t
                self._release_heads()
                selected = self.select_clients(t)
                payloads = self.server_steps.payloads()
                updates = self.pool.train(t, selected, theta, payloads)
                self.metrics |= self.pool.round_metrics
            with self.timed("averaging"):  # theta^P <- sum_i |D_i| theta_i / sum_i |D_i|
                answers = gather_answers(updates, selected, self.processes)
                self.metrics |= round_metrics.loss_metrics(answers)
                averages = average_updates(updates, answers, theta, self.processes, self.head_only)
                averages = self.server_steps.take(theta, averages, updates, answers)
                round_ = self.server.collect_round(t, updates, answers, averages)
            students = averages
            if self.algorithm.distills:
                with self.timed("teachers"):  # y(x) <- softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x))
                    soft_labels = self.labels.get("distill")
                    if soft_labels is None:
                        soft_labels = self.server.soft_labels(round_, self.scores)
                with self.timed("distillation"):  # theta^P minimizes D_KL(y, softmax(f(x)))
                    students, losses = self.server.distill(t, averages, soft_labels)
                self.metrics |= losses
            if self.is_measured(t):
                with self.timed("evaluation"):
                    measured = self.server.evaluate(round_, self.scores)
                    if self.labels:
                        classes = self.labels["evaluation"].argmax(dim=1)
                        measured["teachers/accuracy"] = self.server.predictor.accuracy(classes)
                self.metrics |= {f"{self.evaluation_prefix}{k}": v for k, v in measured.items()}
            self.memory.commit(t, round_.clients, self.processes)
            self._complete_metrics(updates, payloads)
            for name, state in students.items():
                self.students[name].load_state_dict(state)
        self.count_step()

    def select_clients(self, t: int) -> list[int]:
        """S_t, the clients that take part in round t; none if clients only make a release."""
        if not self.algorithm.trains_clients:
            return []
        seed = derive_seed(self.seed, SeedPurpose.CLIENT_SELECTION, t)
        return sample_clients(len(self.architectures), self.participation, seed)

    def is_measured(self, t: int) -> bool:
        """Whether round t is followed by a validation; only then are its teachers evaluated."""
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and (every is None or t % every == 0)

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Measures the seconds of a stage of the round."""
        return round_metrics.timed(self.metrics, stage, self.device)

    def _complete_metrics(self, updates: Sequence[Update], payloads: Mapping[str, State]) -> None:
        """Adds bytes and memory; afterwards all processes have the same metrics."""
        sent = round_metrics.traffic(updates, payloads, self.head_only, self.processes)
        self.metrics |= round_metrics.byte_metrics(sent, self.history, self.preparation_bytes)
        if self.algorithm.remember:
            self.metrics |= round_metrics.memory_metrics(self.memory, self.processes)
        self.metrics = self.processes.broadcast(self.metrics)  # seconds differ between processes

    def on_validation_epoch_end(self) -> None:
        """Adds the accuracies to the metrics of the round."""
        accuracies = self.compute_accuracies()
        of_classes = {key for key in accuracies if "class_accuracy/" in key}
        if not self.shows_classes:
            accuracies = {k: v for k, v in accuracies.items() if k not in of_classes}
        if self.is_fitting:
            self.metrics |= accuracies
        else:
            self.log_measured({k: v for k, v in accuracies.items() if k in of_classes})

    @property
    def shows_classes(self) -> bool:
        """Whether a validation is shown class by class: with secret noise, not on private data."""
        return not (self.algorithm.secret_noise and self.holds_out)

    def on_train_epoch_end(self) -> None:
        """Adds the metrics of the round to the history, and logs them over the round."""
        self.history.append(self.metrics)
        self._round_start = None
        self.log_round(self.metrics)
        for callback in federation_callbacks(self.trainer):
            callback.on_round_end(self.trainer, self)

    # --- Checkpoints ---------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """The arguments that the federation was created with, by name."""
        return {
            "algorithm": self.algorithm,
            "clients": dict(self.clients),
            "participation": self.participation,
            "train": self.trained,
            "local": self.local,
            "distillation": self.distillation,
            "pretraining": self.pretraining,
            "optimizer_state": "carry" if self.carry else "reset",
            "batchnorm": self.batchnorm,
            "model_options": dict(self.model_options),
            "seed": self.seed,
            "threads": self.threads,
        }

    def settings(self) -> dict[str, Any]:
        """All settings that determine the result, as plain values; a resumed run has the same."""
        training = (self.local, self.distillation, self.pretraining)
        settings = {
            **self.arguments(),
            **{part.option: part.plain() for part in training},
            "algorithm": self.algorithm.settings(),
            "data": self.data.settings(),
        }
        return {name: describe(value) for name, value in settings.items()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the next round needs besides the students, as tensors and plain values."""
        fill_checkpoint(checkpoint, self, self._round_start)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores an undamaged checkpoint of the same format and settings."""
        restore_checkpoint(checkpoint, self)
