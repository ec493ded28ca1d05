"""A federation under Lightning: its settings, its set-up and its checkpoints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fedaux_pl._version import __version__
from fedaux_pl.algorithms import Algorithm, RememberedTeacher
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine import checkpoints
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.engine.strategy import processes_of
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation import checks
from fedaux_pl.federation.assembly import (
    TrainedStudents,
    create_clients,
    create_context,
    create_preparation,
    create_server,
)
from fedaux_pl.federation.client_models import (
    check_own_statistics,
    describe_client_models,
    has_batchnorm,
)
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.context import CarriedState
from fedaux_pl.federation.create_runner import Acceleration
from fedaux_pl.federation.duration import RoundWork, describe_duration
from fedaux_pl.federation.evaluation import Evaluation
from fedaux_pl.federation.evaluation_metrics import class_paths, read_metrics
from fedaux_pl.federation.given_h0 import GivenH0, check_names, choose_h0
from fedaux_pl.federation.guarantees import (
    Unprotected,
    VotingRecords,
    describe_guarantees,
    list_unprotected,
    tabulate_guarantees,
)
from fedaux_pl.federation.hyperparameters import describe, rebuild
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.role import Role
from fedaux_pl.federation.server import Server
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.federation.students import Students
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import Callback, LightningModule, TrainerFn, move_data_to_device
from fedaux_pl.models import check_imported
from fedaux_pl.models.classifier import is_composition
from fedaux_pl.modules.batch_checks import first_entry
from fedaux_pl.modules.classifier_module import TrainedPart
from fedaux_pl.modules.state_dicts import copy_state
from fedaux_pl.processes import choose_threads
from fedaux_pl.scoring import Collected, ReleasedHead
from fedaux_pl.scoring.guarantee import Guarantee
from fedaux_pl.scoring.plan import Plan, PublicNumbers
from fedaux_pl.scoring.released_heads import pack, unpack
from fedaux_pl.scoring.secure_sums import check_sums


class FederationModule(LightningModule):
    """All of a federation but Algorithms 1 and 2; its arguments are those of ``Federation``."""

    pool: ClientPool
    server: Server

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
        self.clients = clients
        self.model_options = model_options or {}
        self.seed = seed
        self.batchnorm_statistics: BatchNormOption = batchnorm_statistics
        self.chosen_metrics = read_metrics(metrics)
        self.algorithm = algorithm
        self.participation = participation
        self.trained = trained
        self.head_only = trained == "head"
        self.local = local
        self.distillation = distillation
        self.pretraining = pretraining
        self._given_threads = threads
        self.threads = threads
        self.acceleration: Acceleration = acceleration or "off"  # YAML reads off as false
        checks.check_settings(self.arguments())
        self._outer_threads = torch.get_num_threads()
        self.role = Role()
        self.students = Students(clients, self.model_options, seed)
        self.classes: tuple[str, ...] = ()
        self.evaluation = Evaluation(self.chosen_metrics)
        self.architectures = [name for name, count in clients.items() for _ in range(count)]
        self.loaded_from: Path | None = None
        self.given_h0: dict[str, GivenH0] = {}  # learned elsewhere
        self.save_hyperparameters(describe(self.arguments()), logger=False)
        self._begin()

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

    def _begin(self) -> None:
        """Forget everything that a run has learned."""
        self._h0: dict[str, dict[str, Tensor]] = {}
        self.plan: Plan = {}  # the steps in which clients release
        self.releases: dict[str, Collected] = {}  # so far; by step, or "gradient/resnet8"
        self.scores: dict[str, Tensor] = {}  # s_i(x) on the parts of the data, shapes (n, N)
        self.labels: dict[str, Tensor] = {}  # (N, C), of a teacher made from releases alone
        self.carried = CarriedState()
        self.preparation_bytes: tuple[float, float] = 0, 0  # to the server, to the clients
        self.metrics: dict[str, float] = {}  # of the current round
        self.history: list[dict[str, float]] = []  # the metrics of the finished rounds
        self._round_start: tuple[dict[str, Tensor], CarriedState] | None = None

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

    def create_students(
        self, input_shape: Sequence[int], classes: Sequence[str], pretrained: bool
    ) -> None:
        """Create the models, ``pretrained`` from weights that come with them, if there are any."""
        self.classes = tuple(classes)
        self.students.create(input_shape, len(classes), pretrained, self.pretraining.seed)
        self.evaluation = Evaluation(self.chosen_metrics, self.classes)

    def setup(self, stage: str) -> None:
        """Check the options against the data, plan the releases and create the students.

        A fit from round 0 begins a new run; a federation of ``load_from_checkpoint`` keeps its
        students. Lightning loads a checkpoint to resume afterwards.
        """
        trainer = self.trainer
        algorithm = self.algorithm
        is_fit = stage == "fit"
        self.processes = processes_of(trainer)
        if not is_fit and self.students and trainer.datamodule is None:  # type: ignore[attr-defined]
            return  # evaluates or predicts with dataloaders
        data = self.data
        checks.check_data(data, algorithm, self.clients)
        self.role.check(trainer)
        monitored = self.monitored_metrics
        if "test" not in data.held_parts or data.evaluation_examples.clients is None:
            monitored = {name: monitored[name] for name in monitored if "_client/" not in name}
        has_validation = data.validation_examples is not None
        checks.check_trainer(trainer, self.clients, has_validation, monitored)
        if is_fit:
            optimizer = self.local.optimizer_settings.plain()
            algorithm.check_clients(optimizer, str(trainer.precision))
        trainer.log_every_n_steps = 1  # type: ignore[attr-defined]  # a round is one batch
        if self.loaded_from is not None:
            self.train()
        elif is_fit and self.current_epoch == 0:
            self._begin()
            self.students.clear()
        self.plan = self.plan_releases() if is_fit else {}
        if not self.students:
            # a given h_0 needs no other weights, and sites get theirs from the server
            is_received = self.choose_h0() or data.holds == "private"
            loads = algorithm.pretrained and not is_received
            self.create_students(data.input_shape, data.classes, loads)
            for student in self.students.values():
                data.check_model(student)
                algorithm.own_entries(student)  # raises if the network has no such layers
        students = dict(self.students.items())
        if self.batchnorm_statistics == "own" and stage != "predict":
            check_own_statistics(data)
            is_resumed = is_fit and trainer.ckpt_path is not None
            is_told = trainer.is_global_zero and not is_resumed  # the run has said it then
            if not has_batchnorm(students.values()) and is_told:
                print_above_bars("note: no network has BatchNorm: 'own' statistics have no effect")
        check_sums(self.plan, students, len(data.classes))
        self._outer_threads = torch.get_num_threads()
        self.use_threads(self.processes.broadcast(choose_threads(students.values())))
        if not is_fit:
            return
        checks.check_image_size(data, students)
        if not self.head_only:
            distillation = self.distillation if algorithm.distills else None
            checks.check_batches(data, students, self.architectures, self.local, distillation)
        for training in (self.local, self.distillation):
            training.check(data.all_inputs[0][:4], trainer.max_epochs)

    def create_parts(self) -> None:
        """Create the clients and the server, when the Trainer, the data and the students exist."""
        context = create_context(
            self.trainer,
            self.data,
            self.processes,
            self.seed,
            self.architectures,
            self.carried,
            self.acceleration,
        )
        context.runner.adopt(self.students)
        students = TrainedStudents(
            self.students, len(self.classes), self.trained, self.reads_features
        )
        clients = create_clients(
            context, students, self.algorithm, self.local, self.batchnorm_statistics
        )
        models = {name: module.model for name, module in clients.modules.items()}
        self.server = create_server(context, students, self.algorithm, self.distillation, models)
        self.pool = self.role.create_pool(clients)

    def create_preparation(self) -> Preparation:
        """Create what runs Algorithm 1, after ``create_parts``."""
        return create_preparation(
            self.server.context,
            self.students,
            self.pretraining,
            self.algorithm.secret_noise,
            self.choose_h0(),
            self.role.kept,
        )

    def announce_duration(self, preparation: Preparation) -> None:
        """Print how long the run takes, unless it is short."""
        algorithm = self.algorithm
        work = RoundWork(
            participation=self.participation if algorithm.trains_clients else 0.0,
            client_epochs=self.local.epochs,
            distillation_epochs=self.distillation.epochs if algorithm.distills else 0,
            reads_features=self.reads_features,
        )
        rounds_left = preparation.context.rounds - len(self.history)
        duration = describe_duration(
            preparation,
            self.students,
            work,
            learns_h0=algorithm.pretrained and not self.h0,
            rounds=rounds_left if self.role.has_rounds else 0,
        )
        if duration is not None:
            print_above_bars(f"note: {duration}")

    @property
    def reads_features(self) -> bool:
        """Whether heads are trained on h(x), computed once, which augmentation would change.

        Networks with a ``forward`` of their own are trained on x.
        """
        augmented = self.local.augmentation or self.distillation.augmentation
        is_fixed = self.head_only and not augmented
        return is_fixed and all(map(is_composition, self.students.values()))

    @property
    def uses_vote(self) -> bool:
        """Whether clients vote on the server's models after distillation."""
        return self.algorithm.distills and self.distillation.blend == "vote"

    @property
    def voting_records(self) -> VotingRecords | None:
        """The private records by which clients vote; None for none, and at sites, which say it."""
        data = self.federated_data
        if data is None or data.at_sites or not self.uses_vote:
            return None
        if data.validation_examples is None:
            return "training"
        return "held-out" if self.has_held_out_data else None  # given data are the experimenter's

    def plan_releases(self) -> Plan:
        """Return the steps of releases; real sites tell their sizes too late to plan by them."""
        data = self.data
        if data.at_sites:
            return self.algorithm.plan(None)
        sizes: dict[str, list[int]] = {name: [] for name in self.clients}
        for name, size in zip(self.architectures, data.client_sizes, strict=True):
            sizes[name].append(size)
        return self.algorithm.plan(PublicNumbers(sizes, len(data.classes)))

    @property
    def heads(self) -> Sequence[ReleasedHead]:
        """What clients have released in the first step, ordered by client."""
        first = next(iter(self.releases.values()), None)
        return [] if first is None else first.heads

    @property
    def all_heads(self) -> list[ReleasedHead]:
        """What clients have released in all steps."""
        return [head for collected in self.releases.values() for head in collected.heads]

    @property
    def h0(self) -> Mapping[str, State]:
        """The weights of h_0 by architecture, which a run learns or was given; empty before."""
        return MappingProxyType(self._h0)

    @h0.setter
    def h0(self, given: Mapping[str, GivenH0]) -> None:
        """Start the next fit from an h_0 of each architecture that was learned elsewhere."""
        self.given_h0 = dict(given)

    def choose_h0(self) -> Mapping[str, GivenH0]:
        """Return the given h_0 of each architecture; empty if h_0 is learned or not needed."""
        return choose_h0(self.given_h0, self.pretraining.h0, list(self.clients), self.algorithm)

    def __setattr__(self, name: str, value: Any) -> None:
        """Check h_0 here: torch keeps a module as a part, whatever setter there is."""
        if name == "h0":
            check_names(value, list(self.clients))
        super().__setattr__(name, value)

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

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of a stage to the metrics of the round."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":  # kernels run asynchronously
            torch.cuda.synchronize(self.device)
        self.metrics[f"seconds/{stage}"] = time.perf_counter() - start

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Restore the students and all that is carried to the next round if the block raises."""
        weights = copy_state(self.students)
        carried = self.carried.copy()
        self._round_start = weights, carried
        try:
            yield
        except BaseException:
            self.carried.restore(carried)
            self.students.load_state_dict(weights)
            raise

    def forward(self, x: Tensor) -> Tensor:
        """Return class probabilities of the ensemble of all students, shape (N, C)."""
        return self.students.forward(x)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return class probabilities of the ensemble for inputs, also with labels, shape (N, C)."""
        probabilities: Tensor = self(first_entry(batch))
        return probabilities

    @property
    def evaluated_clients(self) -> Examples | None:
        """The evaluated data, if their samples name clients."""
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

    @property
    def evaluation_prefix(self) -> str:
        """The prefix of what is measured in a round: on validation data, or on the test data."""
        data = self.federated_data
        is_test = data is not None and data.validation_examples is None
        return "" if is_test else "val/"

    def client_labels(self, names: Sequence[str]) -> list[str]:
        """Return the clients' names; with secret noise their numbers, unless they are sites."""
        if self.algorithm.secret_noise and not self.data.at_sites:
            return [f"client {index}" for index in range(len(names))]
        return list(names)

    @property
    def has_held_out_data(self) -> bool:
        """Whether rounds are measured on private data that the clients hold out."""
        return self.federated_data is not None and self.federated_data.validation_fraction > 0

    @property
    def shows_classes(self) -> bool:
        """Whether metrics by class and client are shown: not of private data with secret noise."""
        return not (self.algorithm.secret_noise and self.has_held_out_data)

    def privacy(self) -> list[str]:
        """Return the guarantee of each kind of release, and what has none; a sentence each."""
        data = self.federated_data
        return describe_guarantees(
            self.algorithm,
            self.all_heads,
            self._list_unprotected(),
            self.role.privacy_notes,
            makes_releases=data is not None and not data.at_sites,
        )

    def guarantees(self) -> list[Guarantee]:
        """Return what ``privacy`` says as rows: what leaves a client, its guarantee, its cost."""
        rows = tabulate_guarantees(
            self.algorithm, self.plan, self.all_heads, self._list_unprotected()
        )
        return [*rows, *self.role.unprotected]

    def _list_unprotected(self) -> list[Unprotected]:
        data = self.federated_data
        at_sites = data is not None and data.at_sites  # sites state it themselves
        has_own_models = self.batchnorm_statistics == "own" or self.local.fine_tuning > 0
        return list_unprotected(
            self.algorithm,
            has_held_out_data=self.has_held_out_data,
            voting_records=self.voting_records,
            measures_own_models=has_own_models and not at_sites,
            keeps_client_states=bool(self.carried.client_states),
        )

    def describe_client_models(self, client: int | None = None) -> list[str]:
        """Return how the model of a client, or of any, differs from the server's; empty if not."""
        students = list(self.students.values())
        if client is not None:
            students = [self.students[self.architectures[client]]]
        return describe_client_models(
            self.algorithm,
            self.local,
            self.batchnorm_statistics,
            students,
            is_kept=client is None or client in self.carried.client_states,
        )

    # --- Checkpoints ---------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = [name for name in signature(FederationModule).parameters if name != "metrics"]
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
        carried = self.carried
        data = self.data
        steps: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        if self._round_start is not None and steps.processed < steps.ready:
            weights, carried = self._round_start
            checkpoint["state_dict"] = {f"students.{key}": value for key, value in weights.items()}
        remembered: dict[int, dict[str, Any]] = {}
        if self.algorithm.remember:
            own = {client: dict(vars(teacher)) for client, teacher in carried.memory.items()}
            remembered = self.processes.merge(own)
        checkpoint["federation"] = {
            "format": checkpoints.FORMAT,
            "version": __version__,
            "settings": self.settings(),
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "input_format": data.input_format,
            "data_names": _name_data(data),
            "history": self.history,
            "round": self.metrics,  # not in the history if saved right after validation
            "h0": self._h0,
            "site_sizes": dict(data.site_sizes),
            "releases": {
                name: {
                    "step": collected.step.name,
                    "clients": list(collected.clients),
                    "sent": collected.step.scorer.tensors(),
                    "heads": pack(collected.heads),
                }
                for name, collected in self.releases.items()
            },
            "privacy": self.privacy(),
            **vars(carried),
            "memory": remembered,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore an undamaged checkpoint of the same format and settings."""
        trainer = self.trainer
        is_checked = isinstance(trainer.strategy.checkpoint_io, checkpoints.AtomicCheckpointIO)
        if trainer.ckpt_path is not None and not is_checked:
            checkpoints.check_undamaged(trainer.ckpt_path)
        checkpoints.check_content(checkpoint, "the checkpoint")
        content = checkpoint["federation"]
        saved_settings = content["settings"]
        self.use_threads(saved_settings["threads"])
        settings = self.settings()
        if trainer.state.fn is TrainerFn.FITTING:
            checkpoints.check_version(content)
        else:  # a run may be measured in several ways, also by later versions
            settings = checkpoints.without_new(settings, saved_settings)
            settings["batchnorm_statistics"] = saved_settings["batchnorm_statistics"]
        checkpoints.check_resumable(saved_settings, settings)
        self.history = content["history"]
        self.metrics = content["round"]
        self._h0 = content["h0"]
        self.data.site_sizes |= content["site_sizes"]
        if self.plan:
            for name, saved in content["releases"].items():
                step = self.plan[saved["step"]].with_sent(saved["sent"])
                heads = unpack(saved["heads"], step)
                self.releases[name] = Collected(step, saved["clients"], heads)
        device = trainer.strategy.root_device
        for name in (vars(self.carried).keys() & content.keys()) - {"memory"}:
            # in place: the clients of a finished fit refer to it
            setattr(self.carried, name, move_data_to_device(content[name], device))
        # split between the processes, however many have written it
        remembered = self.processes.local(sorted(content["memory"].items()))
        self.carried.memory = {
            client: RememberedTeacher(**teacher) for client, teacher in remembered
        }

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
        metrics = saved.get("metrics") or {}
        check_imported([*saved.get("clients", {}), *class_paths(metrics)])
        federation = cls(**rebuild(saved), **changed)
        # without weights that come with models: those of the checkpoint follow
        federation.create_students(content["input_shape"], content["classes"], pretrained=False)
        federation.load_state_dict(checkpoint["state_dict"])
        federation.history = content["history"]
        federation.loaded_from = Path(checkpoint_path)
        federation.metrics = content["round"]
        federation.carried.client_states = content["client_states"]  # clients are evaluated by them
        return federation.to(map_location or "cpu").eval()


def _name_data(data: FederatedDataModule) -> dict[str, str | None]:
    """Return what the data are called, for tables and model cards."""
    auxiliary = None if data.auxiliary is None else data.auxiliary.data_name
    return {"private": data.private_name, "auxiliary": auxiliary}
