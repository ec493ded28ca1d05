"""The federation: Algorithms 1 and 2 of FedAUX (Sattler et al. 2021) under one Trainer.

One epoch of the Trainer is one communication round. Every seed is derived from the run's seed, the
round, the client and the stage, so that the result does not depend on interruptions, on the order
of clients or on the number of processes. The server's models are replaced at the end of a round:
an interrupted run resumes after its last finished round.

Lightning calls ``setup``, ``on_load_checkpoint`` (of a resumed run), ``on_fit_start`` (Algorithm
1), and in every round ``training_step`` (Algorithm 2), the validation and ``on_train_epoch_end``.

A network is f = g(h(x)): features h and a head g. h_0 is h as pre-trained on D_aux, the public data
without labels, of which D^- are the negatives and D_distill is the rest. docs/glossary.md explains
all terms, and docs/architecture.md a run file by file.
"""

import copy
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from fedaux_pl.algorithms import Algorithm, Evidence
from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine import checkpoints
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.strategy import processes_of
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import checkpoint as checkpoint_content
from fedaux_pl.federation import checks, personal
from fedaux_pl.federation.assembly import TrainedStudents, create_clients, create_server
from fedaux_pl.federation.averaging import gather_answers
from fedaux_pl.federation.blend import Blender, create_blender
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.create_runner import Acceleration
from fedaux_pl.federation.duration import RoundWork, announce_duration
from fedaux_pl.federation.evaluation import Evaluation
from fedaux_pl.federation.evaluation_metrics import class_paths, read_metrics
from fedaux_pl.federation.given_h0 import GivenH0, check_names, check_unchanged, choose_h0
from fedaux_pl.federation.guarantees import (
    Unprotected,
    VotingRecords,
    describe_guarantees,
    list_unprotected,
    tabulate_guarantees,
)
from fedaux_pl.federation.hyperparameters import describe, rebuild
from fedaux_pl.federation.personal import PersonalModels
from fedaux_pl.federation.pretraining import H0Source, create_extractor, create_h0_source
from fedaux_pl.federation.releases import (
    ReleaseCollector,
    create_collector,
    start_students_at_classifier,
)
from fedaux_pl.federation.remote_clients import RemoteClients
from fedaux_pl.federation.round_evaluation import evaluate_round
from fedaux_pl.federation.round_log import (
    RoundLog,
    count_round,
    log_measured,
    log_round,
    loss_metrics,
    preparation_traffic,
)
from fedaux_pl.federation.run import Run, create_run
from fedaux_pl.federation.server import Server
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.federation.state import RunState
from fedaux_pl.federation.students import Students
from fedaux_pl.functional import derive_seed, sample_clients
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import Callback, LightningModule, TrainerFn
from fedaux_pl.models import check_imported, load_backbone
from fedaux_pl.models.classifier import is_composition
from fedaux_pl.modules.batch_checks import first_entry
from fedaux_pl.modules.classifier_module import TrainedPart
from fedaux_pl.processes import choose_threads
from fedaux_pl.scoring import Guarantee, Plan, PublicNumbers, ReleasedHead, check_sums

_OF_CLASSES_AND_CLIENTS = ("class_accuracy/", "client_", "mean_client/", "worst_client/")
"""Prefixes of per-class metrics, of per-client metrics, and of their mean and worst."""


class Federation(LightningModule):
    """Run a method of federated learning, one communication round per epoch.

    The students are the server's models theta^P, one of each architecture. They have this name in
    methods without distillation as well. A round logs the accuracy of the students' ensemble:
    ``val/accuracy`` on the validation data or, without any, ``accuracy`` on the test data.
    ``accuracy/resnet8`` is the accuracy of one student. A round also logs the ``metrics``. If the
    evaluated data record which client a sample belongs to, all of this is logged for each client,
    with the mean ``mean_client/accuracy`` and the worst ``worst_client/accuracy``. Further
    measurements are ``client_loss/mean`` and ``distillation_loss/resnet8``. Callbacks can monitor
    all of these except the per-client metrics. A test logs ``accuracy``, ``accuracy/resnet8`` and
    the ``metrics`` in the same way.

    Args:
        algorithm: The method with its options, such as FedAvg(), FedDF() or FedAUX().
        clients: How many clients train each architecture, e.g. {resnet8: 20}.
        participation: The fraction of the clients that take part in a round (at least one).
        trained: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
        local: How clients train.
        distillation: How the server distills its students, in methods with distillation.
        pretraining: How h_0 is learned, in methods that start from it.
        batchnorm_statistics: The statistics of BatchNorm in the evaluation: ``running`` ones, or
            ``own``. With ``own``, a client is evaluated with the statistics of its own training
            data, which one pass without augmentation computes with the server's weights (or with
            the client's, of FedBN and ``local.fine_tuning``). Test or validation data must record
            which client a sample belongs to. A checkpoint can be tested with another value than its
            run had.
        model_options: Further arguments of ``create_model`` for every architecture, e.g.
            {width: 0.5}. Those of a single one stand under its name, e.g. {resnet8: {width: 0.5}}.
        seed: The seed of the run, from which all others are derived.
        threads: The number of CPU threads of each process. Sums are rounded differently with
            another number. None: that of the resumed checkpoint; without one, OMP_NUM_THREADS if
            set, else 1 if every network has fewer than 500,000 parameters, else the number of
            cores, at most 4.
        metrics: Metrics of the students' ensemble besides accuracy: short names (f1, auroc,
            balanced_accuracy, ece, ...) and class paths of torchmetrics, as a list, or with their
            options, e.g. {f1: {average: weighted}}. Macro averages cover only the classes present.
        acceleration: ``auto`` uses our kernels and CUDA graphs on CUDA, ``off`` plain PyTorch, as
            does FEDAUX_PL_ACCELERATION=off. Results differ by rounding; on the CPU they are equal.

    Examples:
        >>> from fedaux_pl import FedDF, Federation
        >>> federation = Federation(FedDF(), clients={"resnet8": 10}, participation=0.3)
        >>> federation.select_clients(1)
        [0, 4, 8]

        ``Trainer(max_epochs=100).fit(federation, datamodule=FederatedDataModule(...))`` runs it.
    """

    # The parts of a run, which ``start`` creates.
    run: Run
    pool: ClientPool
    server: Server
    blender: Blender
    collector: ReleaseCollector | None
    h0_source: H0Source
    personal: PersonalModels
    round_log: RoundLog

    def __init__(
        self,
        algorithm: Algorithm,
        clients: dict[str, int],
        participation: float = 0.4,
        trained: TrainedPart = "full",
        local: LocalTraining = LocalTraining(),  # noqa: B008 - frozen
        distillation: Distillation = Distillation(),  # noqa: B008 - frozen
        pretraining: Pretraining = Pretraining(),  # noqa: B008 - frozen
        batchnorm_statistics: BatchNormOption = "running",
        model_options: dict[str, Any] | None = None,
        seed: int = 0,
        threads: int | None = None,
        metrics: list[str] | dict[str, Any] | None = None,
        acceleration: Acceleration | Literal[False] = "auto",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.algorithm = algorithm
        self.clients = clients
        self.participation = participation
        self.trained = trained
        self.head_only = trained == "head"
        self.local = local
        self.distillation = distillation
        self.pretraining = pretraining
        self.batchnorm_statistics: BatchNormOption = batchnorm_statistics
        self.model_options = model_options or {}
        self.seed = seed
        self._given_threads = threads
        self.threads = threads
        self.chosen_metrics = read_metrics(metrics)
        self.acceleration: Acceleration = acceleration or "off"  # YAML reads off as false
        checks.check_settings(self.arguments())
        self.architectures = [name for name, count in clients.items() for _ in range(count)]
        self.students = Students(clients, self.model_options, seed)
        self.classes: tuple[str, ...] = ()
        self.evaluation = Evaluation(self.chosen_metrics)
        self.given_h0: dict[str, GivenH0] = {}  # learned elsewhere
        self.remote: RemoteClients | None = None  # None: the clients run in this process
        self.loaded_from: Path | None = None
        self._outer_threads = torch.get_num_threads()
        self.save_hyperparameters(describe(self.arguments()), logger=False)
        self._forget()

    def _forget(self) -> None:
        """Forget everything that a run has learned."""
        self.state = RunState()
        self.plan: Plan = {}  # the steps in which clients release
        self.evidence = Evidence()  # computed from the releases
        self._has_started = False

    # --- Algorithm 1 ---------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Create the clients and the server, and run Algorithm 1."""
        self.check_continued()
        self.start()
        self.announce_duration()
        self.prepare()
        self.round_log.prepared = preparation_traffic(
            self.run, self.h0, self.state.releases.values(), dict(self.students.items())
        )
        for callback in federation_callbacks(self.trainer):
            callback.on_federation_prepared(self.trainer, self)

    def prepare(self) -> None:
        """Algorithm 1: learn h_0, let every client release, compute certainty scores.

        A resumed run has h_0 and the releases from its checkpoint.
        """
        self.learn_h0()  # h_0^P <- train_self_supervised(h^P, D_aux)
        self.collect_evidence()  # w_i + noise of every client i; s_i(x) for x in D_distill

    def learn_h0(self) -> None:
        """Learn or read h_0, unless the method needs none or a checkpoint has it."""
        check_unchanged(self.given_h0, self.h0, dict(self.students.items()))
        if self.algorithm.pretrained and not self.h0:
            students = self.students.items()
            self.state.h0 = {name: self.h0_source.h0(name, student) for name, student in students}
            for name, student in students:
                load_backbone(student, self.h0[name])

    def collect_evidence(self) -> None:
        """Ask the clients that have not released yet, and compute s_i(x) and p(c | x).

        Simulated clients all release before round 1. Real sites may answer in a later round. A
        resumed run has the releases from its checkpoint, but no evidence yet.
        """
        if self.collector is None:  # the method needs no release
            return
        if self.collector.is_complete(self.state.releases) and not self.evidence.is_empty:
            return
        nobody_has_released = not self.heads
        h0 = self.extractors()
        released = self.collector.collect(self.pool, self.state.releases, h0)  # w_i, noisy
        self.evidence = self.collector.release.evidence(released)  # s_i(x), p(c | x)
        self.server.keep_features(released.parts)
        # once: later the heads have been trained, and a resumed run has them from its checkpoint
        if nobody_has_released and self.evidence.class_probabilities:
            start_students_at_classifier(self.students, self.evidence, released, self.processes)

    def extractors(self) -> dict[str, nn.Module]:
        """Return h_0 of each architecture as a network; empty before it is learned."""
        return {name: create_extractor(self.students[name], self.h0[name]) for name in self.h0}

    # --- Algorithm 2 ---------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Algorithm 2: run one communication round.

        If the round fails, the students and what rounds leave to the next one are restored.
        Releases stay, because they have been paid for. If several processes share the clients, each
        trains some of them: ``updates`` (also in ``round_models``), ``dropped`` and the seconds are
        those of one process. All other values below are equal in all processes. The ``batch`` is
        empty, because clients hold the data.
        """
        t = self.current_epoch + 1
        log = self.round_log
        self.state.metrics = {"round": t}
        with self.state.transaction(self.students):
            with log.stage("clients"):  # theta_i <- train(theta^P, D_i) for i in S_t
                self.collect_evidence()  # from clients that had not released yet
                theta = self.students.states()
                selected = self.select_clients(t)
                payloads = self.server.payloads()
                updates = self.pool.train(t, selected, theta, payloads)
                log.add(self.pool.round_metrics)
            with log.stage("averaging"):  # theta^P <- sum_i |D_i| theta_i / sum_i |D_i|
                answers = gather_answers(updates, selected, self.processes)
                averages = self.server.average(theta, updates, answers)
                round_models = self.server.collect_round(t, updates, answers, averages)
                log.add(loss_metrics(answers))
            new_models: Mapping[str, State] = averages
            if self.algorithm.distills:
                with log.stage("teachers"):  # y(x) <- softmax(sum_i s_i(x) f_i(x) / sum_i s_i(x))
                    soft_labels = self.server.soft_labels(round_models, self.evidence)
                with log.stage("distillation"):  # theta^P minimizes D_KL(y, softmax(f(x)))
                    distilled, losses = self.server.distill(t, theta, averages, soft_labels)
                    blended = self.blender.blend(t, averages, distilled)  # by default: distilled
                    new_models = blended.models
                log.add({**losses, **blended.metrics})
            if self.is_measured(t):
                with log.stage("evaluation"):
                    measured = evaluate_round(self.server, round_models, self.evidence)
                log.add({f"{self.evaluation_prefix}{k}": v for k, v in measured.items()})
            dropped = self.server.forget_teachers(round_models)
            log.finish(updates, payloads, self.server.memory, dropped)
            for name, state in new_models.items():
                self.students[name].load_state_dict(state)
        count_round(self.trainer)

    def select_clients(self, t: int) -> list[int]:
        """Return S_t, the clients that take part in round t; empty if the method trains none."""
        if not self.algorithm.trains_clients:
            return []
        seed = derive_seed(self.seed, SeedPurpose.CLIENT_SELECTION, t)
        return sample_clients(len(self.architectures), self.participation, seed)

    def is_measured(self, t: int) -> bool:
        """Return whether a validation follows round t.

        Only then are its averages and teachers evaluated.
        """
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and (every is None or t % every == 0)

    def on_train_epoch_end(self) -> None:
        """Add the round's metrics to the history, and log them at the round's number."""
        self.state.finish_round()
        log_round(self, self.metrics)
        for callback in federation_callbacks(self.trainer):
            callback.on_round_end(self.trainer, self)

    def on_fit_end(self) -> None:
        """Send the models of the last round to real sites."""
        if self.history:
            self.pool.finish(len(self.history), self.students.states())

    # --- Set-up --------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Check the options against the data, plan the releases and create the students.

        A fit from round 0 begins a new run. A federation of ``load_from_checkpoint`` keeps its
        students. When a run is resumed, Lightning loads the checkpoint after this hook.
        """
        is_fit = stage == "fit"
        self.processes = processes_of(self.trainer)
        if not is_fit and self.students and self.trainer.datamodule is None:  # type: ignore[attr-defined]
            return  # evaluates or predicts with dataloaders
        arguments = self.arguments()
        if self.remote is not None:
            self.remote.check(self.trainer)
        checks.check_run(self.trainer, self.data, arguments, self.monitored_metrics, is_fit)
        if self.loaded_from is not None:
            self.train()  # load_from_checkpoint has left it in evaluation mode
        elif is_fit and self.current_epoch == 0:
            self._forget()
            self.students.clear()
        self.plan = self.plan_releases() if is_fit else {}
        if not self.students:
            # learning h_0 starts at weights that come with the network, if there are any; a given
            # h_0 needs none, and a site gets its weights from the server
            is_received = self.choose_h0() or self.data.holds == "private"
            loads_weights = self.algorithm.pretrained and not is_received
            self.create_students(self.data.input_shape, self.data.classes, loads_weights)
        checks.check_students(self.trainer, self.data, arguments, self.students, stage)
        check_sums(self.plan, dict(self.students.items()), len(self.classes))
        self._outer_threads = torch.get_num_threads()
        self.use_threads(self.processes.broadcast(choose_threads(self.students.values())))

    def create_students(
        self, input_shape: Sequence[int], classes: Sequence[str], pretrained: bool
    ) -> None:
        """Create the models; ``pretrained`` for the weights that come with a network, not h_0."""
        self.classes = tuple(classes)
        self.students.create(input_shape, len(classes), pretrained, self.pretraining.seed)
        self.evaluation = Evaluation(self.chosen_metrics, self.classes)

    def plan_releases(self) -> Plan:
        """Return the steps in which clients release; empty if they release nothing.

        Real sites report their sizes after planning, so they are unknown here.
        """
        release = self.algorithm.release
        if release is None:
            return {}
        if self.data.at_sites:
            return release.plan(None)
        sizes: dict[str, list[int]] = {name: [] for name in self.clients}
        for name, size in zip(self.architectures, self.data.client_sizes, strict=True):
            sizes[name].append(size)
        return release.plan(PublicNumbers(sizes, len(self.data.classes)))

    def start(self) -> None:
        """Create the clients and the server. The Trainer, the data and the students exist."""
        self.run = create_run(
            self.trainer,
            self.data,
            self.processes,
            self.seed,
            self.architectures,
            self.acceleration,
        )
        self.run.runner.adopt(self.students)
        students = TrainedStudents(
            self.students, len(self.classes), self.trained, self.reads_features
        )
        clients = create_clients(self.run, self.state, students, self.algorithm, self.local)
        # shared, to save memory: whoever uses a network loads its weights first
        networks = {name: module.model for name, module in clients.modules.items()}
        self.pool = clients if self.remote is None else self.remote.create_pool(clients)
        self.server = create_server(
            self.run, self.state, students, self.algorithm, self.distillation, networks
        )
        self.blender = create_blender(self.distillation.blend, self.pool, self.state)
        self.personal = PersonalModels(clients, self.batchnorm_statistics)
        self.round_log = RoundLog(self.run, self.state, self.students, self.head_only)
        h0_folder = None if self.remote is None else self.remote.h0_folder
        self.h0_source = create_h0_source(
            self.run, self.students, self.pretraining, self.choose_h0(), h0_folder
        )
        self.evidence = Evidence()
        self.collector = None
        if self.plan and self.algorithm.release is not None:
            self.collector = create_collector(
                self.run, self.students, self.algorithm.release, self.plan
            )
        self._has_started = True

    def check_continued(self) -> None:
        """Raise a ConfigurationError if a new run would forget the rounds of a checkpoint."""
        if self.loaded_from is not None and self.trainer.ckpt_path is None:
            raise ConfigurationError(
                f"this federation was loaded from {self.loaded_from} after {len(self.history)} "
                "rounds, which a new run would forget: give fit the same ckpt_path to continue it, "
                "or create a new Federation"
            )
        self.loaded_from = None

    def announce_duration(self, has_rounds: bool = True) -> None:
        """Print how long the run takes, unless it is short; without rounds only h_0 is learned."""
        learns_h0 = self.algorithm.pretrained and not self.h0
        rounds = self.run.rounds - len(self.history) if has_rounds else 0
        work = RoundWork(
            participation=self.participation if self.algorithm.trains_clients else 0.0,
            client_epochs=self.local.epochs,
            distillation_epochs=self.distillation.epochs if self.algorithm.distills else 0,
            reads_features=self.reads_features,
        )
        announce_duration(self.h0_source, self.students, work, learns_h0, rounds)

    @property
    def reads_features(self) -> bool:
        """Whether heads are trained on stored features h(x) instead of x.

        This needs a fixed h, and no augmentation.
        Networks with a ``forward`` of their own are trained on x.
        """
        augmented = self.local.augmentation or self.distillation.augmentation
        is_fixed = self.head_only and not augmented
        return is_fixed and all(map(is_composition, self.students.values()))

    def use_threads(self, threads: int) -> None:
        """Compute with that number of CPU threads, unless the constructor was given another."""
        self.threads = self._given_threads or threads
        self.hparams["threads"] = self.threads
        torch.set_num_threads(self.threads)

    def teardown(self, stage: str) -> None:
        """Restore the number of CPU threads that the program had before."""
        torch.set_num_threads(self._outer_threads)

    def configure_callbacks(self) -> list[Callback]:
        """Return the report of the run, unless the Trainer has one.

        Lightning calls this before its own checks, whose advice is not for a federation.
        """
        if self.trainer.state.fn == TrainerFn.FITTING:
            checks.check_options(self.trainer)
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        has_report = any(isinstance(callback, FederationReport) for callback in callbacks)
        return [] if has_report else [FederationReport()]

    def configure_optimizers(self) -> list[Any]:
        """Return no optimizer: every stage of a round creates its own."""
        return []

    # --- What callbacks and users read ---------------------------------------------------------

    def __repr__(self) -> str:
        clients = ", ".join(f"{count} {name}" for name, count in self.clients.items())
        state = "no round yet"
        if self.history:
            state = f"after round {len(self.history)}"
            last = self.history[-1]
            names = [f"{self.evaluation_prefix}{kind}accuracy" for kind in ("mean_client/", "")]
            measured = [name for name in names if name in last]
            if measured:
                state += f", {measured[0]} {last[measured[0]]:.1%}"
        return f"Federation({self.algorithm.name}, clients: {clients}; {state})"

    @property
    def data(self) -> FederatedDataModule:
        """The Trainer's data module, which must be a federated one."""
        if self.federated_data is None:
            raise ConfigurationError(
                "a federation needs data that are split over clients: give the Trainer a "
                "FederatedDataModule as datamodule"
            )
        return self.federated_data

    @property
    def federated_data(self) -> FederatedDataModule | None:
        """The Trainer's data module if it is a federated one; None for dataloaders alone."""
        data = getattr(self._trainer, "datamodule", None)  # a loaded federation has no Trainer
        return data if isinstance(data, FederatedDataModule) else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the current round, or of the last one."""
        return self.state.metrics

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of the finished rounds."""
        return self.state.history

    @property
    def heads(self) -> Sequence[ReleasedHead]:
        """What clients have released in the first step, ordered by client."""
        first = next(iter(self.state.releases.values()), None)
        return [] if first is None else first.heads

    @property
    def h0(self) -> Mapping[str, State]:
        """The weights of h_0 by architecture, which a run learns or was given; empty before."""
        return MappingProxyType(self.state.h0)

    @h0.setter
    def h0(self, given: Mapping[str, GivenH0]) -> None:
        """Start the next fit from an h_0 of each architecture that was learned elsewhere.

        Until that fit has read it, ``h0`` returns what it returned before.
        """
        self.given_h0 = dict(given)

    def __setattr__(self, name: str, value: Any) -> None:
        """Check h_0 here: torch would keep a module as a part, without calling the setter."""
        if name == "h0":
            check_names(value, list(self.clients))
        super().__setattr__(name, value)

    def choose_h0(self) -> Mapping[str, GivenH0]:
        """Return the given h_0 of each architecture; empty if h_0 is learned or not needed."""
        return choose_h0(self.given_h0, self.pretraining.h0, list(self.clients), self.algorithm)

    @property
    def uses_vote(self) -> bool:
        """Whether clients vote on the server's models after distillation."""
        return self.algorithm.distills and self.distillation.blend == "vote"

    @property
    def voting_records(self) -> VotingRecords | None:
        """The private records by which clients vote; None if they do not vote.

        None at real sites as well, because they state it themselves.
        """
        data = self.federated_data
        if data is None or data.at_sites or not self.uses_vote:
            return None
        if data.validation_examples is None:
            return "training"
        return "held-out" if self.has_held_out_data else None  # given data are the experimenter's

    @property
    def has_held_out_data(self) -> bool:
        """Whether rounds are measured on private data that the clients hold out."""
        return self.federated_data is not None and self.federated_data.validation_fraction > 0

    @property
    def may_show_classes(self) -> bool:
        """Whether metrics by class and client are shown.

        With secret noise they are not shown of data that clients hold out, because they would
        reveal more about private records than the noise hides.
        """
        return not (self.algorithm.secret_noise and self.has_held_out_data)

    def client_labels(self, names: Sequence[str]) -> list[str]:
        """Return the clients' names; with secret noise their numbers, unless they are sites."""
        if self.algorithm.secret_noise and not self.data.at_sites:
            return [f"client {index}" for index in range(len(names))]
        return list(names)

    def privacy(self) -> list[str]:
        """Return the guarantee of each kind of release, and what has none; a sentence each."""
        data = self.federated_data
        release = self.algorithm.release
        return describe_guarantees(
            None if release is None else release.scoring,
            self.state.all_heads,
            self._list_unprotected(),
            () if self.remote is None else self.remote.privacy_notes,
            trains_clients=self.algorithm.trains_clients,
            makes_releases=data is not None and not data.at_sites,
        )

    def guarantees(self) -> list[Guarantee]:
        """Return what ``privacy`` says as rows: what leaves a client, its guarantee, its cost."""
        release = self.algorithm.release
        rows = tabulate_guarantees(
            None if release is None else release.scoring,
            self.plan,
            self.state.all_heads,
            self._list_unprotected(),
            trains_clients=self.algorithm.trains_clients,
        )
        return [*rows, *(() if self.remote is None else self.remote.unprotected)]

    def _list_unprotected(self) -> list[Unprotected]:
        data = self.federated_data
        at_sites = data is not None and data.at_sites  # sites state it themselves
        has_own_models = self.batchnorm_statistics == "own" or self.local.fine_tuning > 0
        keeps_entries = bool(self.state.client_states)
        return list_unprotected(
            has_held_out_data=self.has_held_out_data,
            voting_records=self.voting_records,
            measures_own_models=has_own_models and not at_sites,
            remembers_teachers=self.algorithm.remember,
            sends_more_than_models=self.algorithm.sends_more_than_models or keeps_entries,
        )

    # --- Evaluation ----------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Return class probabilities of the ensemble of all students, shape (N, C)."""
        return self.students.forward(x)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return class probabilities of the ensemble for inputs, also with labels, shape (N, C)."""
        probabilities: Tensor = self(first_entry(batch))
        return probabilities

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Predict with each student and with their ensemble."""
        x, labels = batch[:2]
        if batch_idx == 0:
            self.students.check_inputs(x)
            self.evaluation.begin()
        keep_logits = bool(self.chosen_metrics) or self.evaluated_clients is not None
        self.evaluation.add(self._predict_with_students(x), labels, keep_logits)

    test_step = validation_step

    def _predict_with_students(self, x: Tensor) -> Tensor:
        """Return the logits of each student, shape (S, N, C)."""
        if not (self.reads_features and self.trainer.state.fn is TrainerFn.FITTING):
            return self.students.evaluate(x)
        # the same data in the same order after every round, of which h(x) is known
        rows = torch.arange(len(x), device=x.device) + self.evaluation.count
        states = [(name, student.state_dict()) for name, student in self.students.items()]
        return torch.stack(
            [self.server.predict(*student, "evaluation", rows) for student in states]
        )

    def measure(self) -> dict[str, float]:
        """Return accuracies, chosen metrics and all metrics by client, after all batches."""
        predictions = self.evaluation.join_batches()
        labels = predictions.labels
        metrics = self.evaluation.measure(predictions, self.students)
        examples = self.evaluated_clients
        if examples is not None and examples.clients is not None:
            clients = examples.clients[: len(labels)].to(labels.device)  # fewer: limit_val_batches
            names = self.client_labels(examples.client_names)
            logits = self.client_logits(examples, predictions.logits)
            metrics |= self.evaluation.measure_clients(logits, labels, clients, names)
        return metrics

    def on_test_epoch_end(self) -> None:
        """Log all metrics on the test data."""
        log_measured(self, self.measure())

    def on_validation_epoch_end(self) -> None:
        """Add all that was measured to the metrics of the round, also by real sites themselves."""
        is_fit = self.trainer.state.fn is TrainerFn.FITTING
        if is_fit and not self.trainer.sanity_checking:
            self.round_log.add(self.pool.evaluate(int(self.metrics["round"])))
        prefix = self.evaluation_prefix
        hidden: tuple[str, ...] = () if self.may_show_classes else _OF_CLASSES_AND_CLIENTS
        shown = {k: v for k, v in self.measure().items() if not k.startswith(hidden)}
        if is_fit:
            self.state.metrics |= {prefix + name: value for name, value in shown.items()}
        # callbacks monitor mean and worst, not each client: there may be many
        unmonitored = _OF_CLASSES_AND_CLIENTS[:2] if is_fit else ()
        measured = {prefix + k: v for k, v in shown.items() if not k.startswith(unmonitored)}
        log_measured(self, measured, logger=not is_fit)  # a round logs all its metrics

    @property
    def evaluation_prefix(self) -> str:
        """The prefix of what is measured in a round: on validation data, or on the test data."""
        data = self.federated_data
        is_test = data is not None and data.validation_examples is None
        return "" if is_test else "val/"

    @property
    def evaluated_clients(self) -> Examples | None:
        """The evaluated data, if they record which client a sample belongs to."""
        data = self.federated_data
        if data is None:
            return None
        examples = data.test_examples if self.trainer.testing else data.evaluation_examples
        return None if examples.clients is None else examples

    @property
    def confusion(self) -> Tensor | None:
        """The confusion matrix of the last evaluation, shape (C, C)."""
        return self.evaluation.confusion

    @property
    def client_confusions(self) -> Mapping[str, Tensor]:
        """The confusion matrices of the clients that the evaluated data name, shape (C, C) each."""
        return self.evaluation.client_confusions

    @property
    def monitored_metrics(self) -> dict[str, bool]:
        """Whether higher is better, by metric that callbacks can monitor besides accuracies."""
        return self.evaluation.monitored

    # --- Models of clients ---------------------------------------------------------------------

    @torch.inference_mode(False)  # tests run in it, and fine-tuning needs gradients
    def client_logits(self, examples: Examples, logits: Tensor) -> Tensor:
        """Predict each sample with the model of the client that owns it.

        Args:
            examples: The evaluated data.
            logits: What the server's models predict for the first of ``examples``, which is
                returned if clients have no models of their own.
        """
        is_owned = examples.clients is not None
        is_owned = is_owned and list(examples.client_names) == self.data.client_names
        is_early = self.trainer.sanity_checking  # before the first round
        if not self.describe_client_models() or not is_owned or is_early:
            return logits
        self._start_if_needed()
        t = int(self.metrics["round"])
        return self.personal.logits(t, examples, logits, self.students.states())

    @torch.inference_mode(False)
    def client_model(self, name: str, data: FederatedDataModule | None = None) -> nn.Module:
        """Return the model that a client uses itself, which maps inputs to logits.

        It is the server's with the client's own BatchNorm (FedBN), fine-tuned on its data
        (``local.fine_tuning``), with BatchNorm statistics of its data (``batchnorm_statistics``
        own), and it is the one that is evaluated for the client.

        Args:
            name: The client, as the data name it.
            data: The data of the run, for a federation that was loaded from a checkpoint; it needs
                none after a fit or a test.
        """
        if not self.metrics:
            raise ConfigurationError(
                "client_model: this federation has no finished round: fit it, or load one with "
                "Federation.load_from_checkpoint(path)"
            )
        if data is not None:
            personal.attach_data(self, data, self.loaded_from)
            self.start()
        client = personal.find_client(name, self.data)
        if not self.describe_client_models(client):
            personal.refuse_client_model(name, bool(self.describe_client_models()))
        self._start_if_needed()
        network = copy.deepcopy(self.students[self.architectures[client]])
        t = int(self.metrics["round"])
        return self.personal.network(t, client, network, self.students.states(), self.threads)

    def _start_if_needed(self) -> None:
        """Create the clients of a federation that was loaded from a checkpoint."""
        if not self._has_started:
            self.start()

    def describe_client_models(self, client: int | None = None) -> list[str]:
        """Return how the model of a client, or of any, differs from the server's; empty if not."""
        students = list(self.students.values())
        if client is not None:
            students = [self.students[self.architectures[client]]]
        return personal.describe_client_models(
            self.algorithm,
            self.local,
            self.batchnorm_statistics,
            students,
            is_kept=client is None or client in self.state.client_states,
        )

    # --- Checkpoints ---------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = [name for name in signature(Federation).parameters if name != "metrics"]
        arguments = {name: getattr(self, name) for name in names}
        if self.chosen_metrics:  # ``self.metrics`` are the measured values
            arguments["metrics"] = self.chosen_metrics
        return arguments

    def settings(self) -> dict[str, Any]:
        """Return all settings that determine the result, as plain values."""
        training = (self.local, self.distillation, self.pretraining)
        settings: dict[str, Any] = {
            **self.arguments(),
            **{stage.option: stage.plain() for stage in training},
            "algorithm": self.algorithm.settings(),
            "data": self.data.settings(),
        }
        if self.local.is_scheduled or self.distillation.is_scheduled:
            settings["rounds"] = self.trainer.max_epochs
        settings.pop("metrics", None)  # a resumed run may measure more
        settings.pop("acceleration")  # and use another device
        return {name: describe(value) for name, value in settings.items()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the next round needs besides the students, as tensors and plain values.

        Within a round (SLURM's signal) it is what the round began with, which is then repeated.
        """
        repeats = checkpoint_content.is_within_round(self.trainer)
        weights = self.state.unfinished_weights()
        if repeats and weights is not None:
            checkpoint["state_dict"] = {f"students.{key}": value for key, value in weights.items()}
        checkpoint["federation"] = {
            **checkpoint_content.describe_run(self.data, self.settings()),
            **self.state.content(
                self.processes, remembers=self.algorithm.remember, at_round_start=repeats
            ),
            "privacy": self.privacy(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore an undamaged checkpoint of the same format and settings."""
        content = checkpoint_content.read_content(self.trainer, checkpoint)
        self.use_threads(content["settings"]["threads"])
        checkpoint_content.check_same_run(self.trainer, content, self.settings())
        self.data.site_sizes |= content["site_sizes"]
        device = self.trainer.strategy.root_device
        self.state.load(content, self.plan, self.processes, device)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        *,
        weights_only: bool | None = None,  # noqa: ARG003 - Lightning's
        **changed: Any,
    ) -> Self:
        """Create the federation of a checkpoint, which predicts: ``federation(inputs)``.

        ``Trainer(...).fit(federation, datamodule=data, ckpt_path=checkpoint_path)`` continues it.
        If its method or a network is a class of yours, import the module of the class before.

        Args:
            checkpoint_path: A checkpoint that this package wrote.
            map_location: The device of the models; None for the CPU.
            weights_only: Without effect: nothing in a checkpoint is ever executed.
            **changed: Arguments of the constructor that replace those of the checkpoint.
        """
        checkpoint = checkpoints.load_checkpoint(Path(checkpoint_path))
        content = checkpoint["federation"]
        hyperparameters = checkpoint["hyper_parameters"]
        saved = {name: value for name, value in hyperparameters.items() if name not in changed}
        check_imported([*saved.get("clients", {}), *class_paths(saved.get("metrics") or {})])
        federation = cls(**rebuild(saved), **changed)
        # skip the pre-trained download: the checkpoint's weights are loaded next
        federation.create_students(content["input_shape"], content["classes"], pretrained=False)
        federation.load_state_dict(checkpoint["state_dict"])
        federation.state.history = content["history"]
        federation.state.metrics = content["metrics"]
        federation.state.client_states = content["client_states"]  # clients are evaluated by them
        federation.loaded_from = Path(checkpoint_path)
        return federation.to(map_location or "cpu").eval()
