"""Checks of what a federation is given: its settings, its data and its Trainer."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from inspect import get_annotations
from typing import Any, get_args

import torch
from torch import nn

from fedaux_pl.algorithms import Algorithm, RunOptions
from fedaux_pl.callbacks.best_checkpoint import METRIC, BestCheckpoint
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.engine import isolated_rng
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.engine.strategy import processes_of
from fedaux_pl.errors import ConfigurationError, check_setting, did_you_mean, is_count
from fedaux_pl.federation.create_runner import Acceleration
from fedaux_pl.federation.personal import check_own_statistics, has_batchnorm
from fedaux_pl.federation.settings import Distillation, LocalTraining, Pretraining
from fedaux_pl.federation.students import Students
from fedaux_pl.functional import sample_clients
from fedaux_pl.lightning import (
    PACKAGE,
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    MPSAccelerator,
    pl,
    rank_zero_warn,
)
from fedaux_pl.lightning import callbacks as lightning_callbacks
from fedaux_pl.models import check_model, options_of
from fedaux_pl.models.image_size import ImageSizeProbe
from fedaux_pl.modules.classifier_module import TrainedPart

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
PRECISION_ALIASES = ("32", "bf16", "16")  # Lightning's other names of them
# Options about batches and gradients of an optimizer, which a federation does not have: its epoch
# is a round. With their default values.
_WITHOUT_EFFECT = {
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "overfit_batches": 0.0,
    "reload_dataloaders_every_n_epochs": 0,
    "val_check_interval": 1.0,
}
# Hooks of methods of version 1.0. Nothing calls them, so a class that still defines one is refused.
FORMER_HOOKS = {
    "sends_weights": "every method averages the weights of its clients now, so leave it out",
    "has_payload": "override client_payload, server_payload or correction, and leave it out",
    "needs_all_updates": "soft_labels sees the teachers of all processes now, so leave it out",
    "teacher_weights": "override FedDF.weight, which returns the weight of one teacher",
    "add_further_teachers": "override members, which returns the models that teach",
    "teachers": "override FedDF.weight, which returns the weight of one teacher",
    "blend": "override new_model, which returns the model that a distillation ends with",
    "check_architectures": "override check, which gets all options of the run",
    "check_clients": "override check, which gets all options of the run",
    **dict.fromkeys(
        ("plan", "send", "score", "label", "classifiers"),
        "return a ClientRelease from the property release, and override it there",
    ),
}
_CALLBACKS_WITHOUT_EFFECT = (
    lightning_callbacks.BatchSizeFinder,
    lightning_callbacks.GradientAccumulationScheduler,
    lightning_callbacks.LearningRateFinder,
    lightning_callbacks.StochasticWeightAveraging,
)


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise a ValueError or TypeError for wrong arguments of a federation, by their names there."""
    for name, kind, example in (
        ("algorithm", Algorithm, "FedAUX()"),
        ("local", LocalTraining, "LocalTraining(epochs=1)"),
        ("distillation", Distillation, "Distillation(epochs=1)"),
        ("pretraining", Pretraining, "Pretraining(epochs=100)"),
    ):
        if not isinstance(value := given[name], kind):
            got = repr(value)
            expected = f"an object such as {example}"
            if isinstance(value, type):
                got = f"the class {value.__name__}"
                expected += ": add parentheses and arguments"
            raise TypeError(f"{name}: got {got}; expected {expected}")
    clients = given["clients"]
    is_mapping = isinstance(clients, Mapping) and len(clients) > 0
    is_allowed = is_mapping and all(is_count(count, 1) for count in clients.values())
    expected = "name architectures with at least 1 client each, such as {'resnet8': 20}"
    check_setting("clients", clients, is_allowed, expected)
    for name, known in (
        ("trained", get_args(TrainedPart)),
        ("batchnorm_statistics", get_args(BatchNormOption)),
        ("acceleration", get_args(Acceleration)),
    ):
        check_setting(name, given[name], given[name] in known, f"be {' or '.join(known)}")
    seed = given["seed"]
    check_setting("seed", seed, is_count(seed, 0), "be an integer of at least 0")
    threads = given["threads"]
    is_allowed = threads is None or is_count(threads, 1)
    check_setting("threads", threads, is_allowed, "be an integer of at least 1, or None")
    participation = given["participation"]
    is_number = isinstance(participation, int | float)
    check_setting("participation", participation, is_number, "lie in (0, 1]")
    sample_clients(1, participation, 0)  # checks the range of the participation
    options = given["model_options"]
    is_mapping = isinstance(options, Mapping)
    check_setting("model_options", options, is_mapping, "be a mapping such as {'width': 0.5}")
    for name in clients:
        check_model(name, **options_of(name, clients, options))
    check_method(given["algorithm"])
    given["algorithm"].check(run_options(given))
    if given["local"].class_weights != "none" and not given["algorithm"].trains_clients:
        raise ConfigurationError(
            f"local.class_weights is {given['local'].class_weights}, but clients of "
            f"{given['algorithm'].name} do not train: set it to none"
        )
    blend = given["distillation"].blend
    is_one_release = given["algorithm"].distills and not given["algorithm"].trains_clients
    if is_one_release and blend != 1:
        raise ConfigurationError(
            f"distillation.blend is {blend}, but clients of {given['algorithm'].name} send one "
            "message and no models to average: leave it out"
        )


def check_method(algorithm: Algorithm) -> None:
    """Raise a TypeError for a class of a user that is no valid method.

    A method is a frozen dataclass, overrides no hook of version 1.0, and draws the noise of a
    release as its option ``privacy`` says.
    """
    kind = type(algorithm)
    for parent in kind.__mro__:
        if parent in (Algorithm, object):
            continue
        for name, advice in FORMER_HOOKS.items():
            value = vars(parent).get(name)
            if callable(value) or isinstance(value, bool | property | classmethod | staticmethod):
                raise TypeError(f"{kind.__name__}.{name} is of version 1.0: {advice}")
        annotations = get_annotations(parent).values()
        options = [each for each in annotations if "ClassVar" not in str(each)]
        dataclass_options = vars(parent).get("__dataclass_params__")
        is_frozen = dataclass_options is not None and dataclass_options.frozen
        if (options or "__init__" in vars(parent)) and not is_frozen:
            raise TypeError(
                f"{parent.__name__} has options but is no frozen dataclass. A method is a frozen "
                "dataclass whose fields are its options: put @dataclass(frozen=True) above the "
                "class, and fields in place of __init__ (docs/extending.md)"
            )
    if algorithm.release is not None and not _takes_secret_noise(algorithm):
        raise TypeError(
            f"{kind.__name__} has a release, whose noise must be that of its option privacy: add "
            "the field privacy, and create the scoring of the release with it (docs/extending.md)"
        )


def _takes_secret_noise(algorithm: Algorithm) -> bool:
    """Return whether the noise of a release becomes secret if the option says so."""
    try:
        return algorithm.with_secret_noise().secret_noise
    except TypeError:  # it has no such option
        return False


def run_options(given: Mapping[str, Any], precision: str | None = None) -> RunOptions:
    """Return the options that a method may refuse."""
    local = asdict(given["local"])
    return RunOptions(given["clients"], local, asdict(given["distillation"]), precision)


def check_run(
    trainer: pl.Trainer,
    data: FederatedDataModule,
    given: Mapping[str, Any],
    monitored: Mapping[str, bool],
    is_fit: bool,
) -> None:
    """Raise an error if data or Trainer do not fit the arguments of the federation.

    Args:
        trainer: The Trainer, which logs every round afterwards, because a round is one batch.
        data: The data of the run.
        given: The arguments of the federation, by name.
        monitored: Metrics that callbacks can monitor, with whether a higher value is better.
        is_fit: Whether rounds follow.
    """
    algorithm = given["algorithm"]
    check_data(data, algorithm, given["clients"])
    names_clients = "test" in data.held_parts and data.evaluation_examples.clients is not None
    if not names_clients:
        monitored = {name: monitored[name] for name in monitored if "_client/" not in name}
    has_validation = data.validation_examples is not None
    check_trainer(trainer, given["clients"], has_validation, monitored)
    if is_fit:
        algorithm.check(run_options(given, str(trainer.precision)))
    trainer.log_every_n_steps = 1  # type: ignore[attr-defined]


def check_students(
    trainer: pl.Trainer,
    data: FederatedDataModule,
    given: Mapping[str, Any],
    students: Students,
    stage: str,
) -> None:
    """Raise an error if the networks cannot be trained or evaluated as the arguments say.

    Args:
        trainer: The Trainer.
        data: The data of the run.
        given: The arguments of the federation, by name.
        students: The server's models.
        stage: Lightning's name of what follows: ``fit``, ``validate``, ``test`` or ``predict``.
    """
    algorithm = given["algorithm"]
    local = given["local"]
    distillation = given["distillation"]
    networks = dict(students.items())
    for network in networks.values():
        data.check_model(network)
        algorithm.own_entries(network)  # raises if the network has no such layers
    is_fit = stage == "fit"
    if given["batchnorm_statistics"] == "own" and stage != "predict":
        check_own_statistics(data)
        is_resumed = is_fit and trainer.ckpt_path is not None  # the run has said it then
        if not has_batchnorm(networks.values()) and trainer.is_global_zero and not is_resumed:
            print_above_bars("note: no network has BatchNorm: 'own' statistics have no effect")
    if not is_fit:
        return
    check_image_size(data, networks)
    if given["trained"] != "head":
        owners = [name for name, count in given["clients"].items() for _ in range(count)]
        distilled = distillation if algorithm.distills else None
        check_batches(data, networks, owners, local, distilled)
    for training in (local, distillation):
        training.check(data.all_inputs[0][:4], trainer.max_epochs)


def check_data(data: FederatedDataModule, algorithm: Algorithm, clients: Mapping[str, int]) -> None:
    """Raise a ConfigurationError if the data do not fit the method or the clients."""
    count = sum(clients.values())
    if data.num_clients != count:
        held = f"are split over {data.num_clients} clients"
        change = f"num_clients={count} in the FederatedDataModule"
        if data.has_given_clients:
            held = f"name {data.num_clients} clients ({shorten(data.client_names)})"
            change = f"clients to {{{next(iter(clients))!r}: {data.num_clients}}}"
        raise ConfigurationError(
            f"the data {held}, but the federation has {count} {clients}: set {change}"
        )
    if algorithm.needs_auxiliary and data.auxiliary is None and "auxiliary" in data.held_parts:
        raise ConfigurationError(
            f"{type(algorithm).__name__} needs auxiliary data: set data.auxiliary, or choose "
            "FedAvg or FedProx with pretrained: false"
        )
    scoring = None if algorithm.release is None else algorithm.release.scoring
    if scoring is not None and scoring.depends_on_negatives and data.negative_fraction == 0:
        raise ConfigurationError(
            f"data.negative_fraction: got 0; expected more for {scoring.scorer} with norm_bound "
            f"{scoring.norm_bound!r}, which use D^-: set it, or use MeanScoring"
        )


def check_image_size(data: FederatedDataModule, students: Mapping[str, nn.Module]) -> None:
    """Raise a ConfigurationError if the images are too small for the layers of a network."""
    if len(data.input_shape) != 3:
        return  # texts
    channels, height, width = data.input_shape
    dtype = data.all_inputs[0].dtype
    for name, model in students.items():
        with isolated_rng(0):
            probe = ImageSizeProbe(model, dtype)
            if not probe.is_too_small(data.input_shape):
                continue
            smallest = probe.smallest_size(channels)
        expected = "larger ones" if smallest is None else f"at least {smallest} x {smallest}"
        raise ConfigurationError(
            f"{name}: got images of {height} x {width} pixels; expected {expected}, so that no "
            "layer halves a feature map of a single pixel: set `size` of the data sources, or give "
            "larger images"
        )


def check_batches(
    data: FederatedDataModule,
    students: Mapping[str, nn.Module],
    architectures: Sequence[str],
    local: LocalTraining,
    distillation: Distillation | None,
) -> None:
    """Raise a ConfigurationError if a model would train on a single sample and cannot.

    With BatchNorm that is so where the last feature map is 1x1, as it is for 8x8 images.
    """
    sizes = data.client_sizes
    is_trained = local.batchnorm != "frozen"
    singles = [client for client, size in enumerate(sizes) if size == 1]
    for name, model in students.items():
        alone = [client for client in singles if architectures[client] == name]
        if local.batch_size == 1 and is_trained:
            problem = "clients train with local.batch_size = 1: set it to at least 2"
        elif alone and is_trained:
            change = f"use at most {max(1, sum(sizes) // 2)} clients"
            if data.has_given_clients:
                change = "leave it out, or give it more samples"
            problem = (
                f"{data.client_names[alone[0]]} has a single sample ({sum(sizes)} samples, "
                f"{len(sizes)} clients): {change}"
            )
        elif distillation is not None and distillation.batch_size == 1:
            problem = "students train with distillation.batch_size = 1: set it to at least 2"
        elif distillation is not None and data.has_auxiliary and len(data.distill_inputs) == 1:
            problem = "D_distill has a single sample: use more auxiliary data"
        else:
            continue
        try:
            sample = data.all_inputs[0][:1].to(next(model.parameters()).device)
            with torch.no_grad(), isolated_rng(0):
                copy.deepcopy(model).train()(sample)
        except ValueError as error:  # of BatchNorm: the model can read the inputs
            raise ConfigurationError(
                f"{name} cannot train on one sample of shape {data.input_shape}, because BatchNorm "
                f"needs more than one value per channel, but {problem}, or use larger images, or "
                "set model_options to {norm: group}"
            ) from error


def check_trainer(
    trainer: pl.Trainer,
    architectures: Iterable[str],
    has_validation: bool | None = None,
    further: Mapping[str, bool] | None = None,
) -> None:
    """Raise a ValueError for settings of the Trainer that a federation does not support.

    ``has_validation`` is whether rounds are measured on validation data; None if not known yet.
    ``further`` are metrics besides accuracies, with whether a higher value is better.
    """
    if isinstance(trainer.accelerator, MPSAccelerator):
        raise ValueError(
            "trainer.accelerator is mps, but Apple's GPUs have no float64, in which releases are "
            "computed: choose cpu"
        )
    if trainer.precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise ValueError(f"trainer.precision: got {trainer.precision}; expected one of {allowed}")
    processes_of(trainer)  # checks the strategy
    check_options(trainer)
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        raise ValueError(
            "trainer.sync_batchnorm is true, but processes train different clients: leave it out"
        )
    every = trainer.check_val_every_n_epoch
    if every is not None and every < 1:
        raise ValueError(f"trainer.check_val_every_n_epoch: got {every}; expected at least 1")
    _check_callbacks(trainer, architectures, has_validation, further or {})


def check_without_rounds(trainer: pl.Trainer) -> None:
    """Raise a ConfigurationError for a smallest number of steps or rounds, if no round runs."""
    for name in ("min_steps", "min_epochs"):
        if getattr(trainer, name):
            raise ConfigurationError(
                f"`trainer.{name}` has no effect, because this program runs no round: remove it"
            )


def check_options(trainer: pl.Trainer) -> None:
    """Raise a ValueError for an option of the Trainer that has no meaning in a federation."""
    batches = trainer.fast_dev_run or 1  # type: ignore[attr-defined]
    for name, default in {**_WITHOUT_EFFECT, "limit_train_batches": batches}.items():
        value = getattr(trainer, name)
        if value != default:
            raise ValueError(
                f"trainer.{name} is {value}, but has no meaning in a federation, whose epoch is a "
                "communication round: leave it out"
            )


def _check_callbacks(
    trainer: pl.Trainer,
    architectures: Iterable[str],
    has_validation: bool | None,
    further: Mapping[str, bool],
) -> None:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, _CALLBACKS_WITHOUT_EFFECT):
            raise ValueError(
                f"trainer.callbacks: {type(callback).__name__} changes a training with one "
                "optimizer, which a federation does not have: leave it out"
            )
    packages = {type(callback).__module__.partition(".")[0] for callback in callbacks}
    if not packages <= {PACKAGE.partition(".")[0], "fedaux_pl"}:
        return  # a callback of the user can log metrics of its own
    better = {"accuracy": True, **{f"accuracy/{name}": True for name in architectures}, **further}
    names = list(better)
    on_validation = [f"val/{name}" for name in names]
    losses = ["client_loss/mean", *(f"distillation_loss/{name}" for name in architectures)]
    metrics = {True: on_validation, False: names, None: on_validation + names}[has_validation]
    for callback in callbacks:
        if not isinstance(callback, EarlyStopping | ModelCheckpoint) or callback.monitor is None:
            continue
        if isinstance(callback, BestCheckpoint) and callback.monitor == METRIC:
            continue  # it saves nothing without validation data
        if isinstance(callback, EarlyStopping) and not trainer.limit_val_batches:
            raise ValueError(
                f"trainer.callbacks: EarlyStopping monitors {callback.monitor}, but with "
                "trainer.limit_val_batches 0 nothing is measured: leave one of them out"
            )
        others = losses if isinstance(callback, EarlyStopping) else [*losses, "epoch", "step"]
        if callback.monitor not in (*metrics, *others):
            remedy = did_you_mean(callback.monitor, metrics)
            if callback.monitor in on_validation:
                remedy = ": set data.validation_fraction, e.g. to 0.1, to have validation data"
            known = [*metrics, *losses]
            if has_validation is None:  # the data, which may name no clients, are not loaded yet
                known = [name for name in known if "_client/" not in name]
            raise ValueError(
                f"trainer.callbacks: monitor of {type(callback).__name__}: got {callback.monitor}; "
                f"expected one of {', '.join(known)}{remedy}"
            )
        is_better = better.get(callback.monitor.removeprefix("val/"))
        if is_better is not None and (callback.mode == "max") != is_better:
            mode = "max" if is_better else "min"
            worse = "low" if is_better else "high"
            default = ", Lightning's default" if is_better else ""
            raise ValueError(
                f"trainer.callbacks: {type(callback).__name__} prefers a {worse} {callback.monitor}"
                f", because its mode is {callback.mode!r}{default}: set mode={mode!r}"
            )
        if callback.monitor in names and has_validation is False:
            rank_zero_warn(
                f"{type(callback).__name__} monitors {callback.monitor}, which is measured on the "
                "test data, so what it selects is no estimate for new data: set "
                "data.validation_fraction, e.g. to 0.1, and monitor val/accuracy"
            )
