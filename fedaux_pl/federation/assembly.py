"""The parts of a run, created when the Trainer, the data and the students are there.

With ``fast_dev_run`` every stage of training has at most one epoch, and nothing is cached.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.callbacks.progress import find_progress
from fedaux_pl.callbacks.report import cache_folder
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.context import CarriedState, Context
from fedaux_pl.federation.create_runner import Acceleration, create_runner
from fedaux_pl.federation.given_h0 import GivenH0
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.server import Server
from fedaux_pl.federation.settings import (
    Distillation,
    LocalTraining,
    Pretraining,
    TrainingSettings,
)
from fedaux_pl.federation.students import Students
from fedaux_pl.lightning import pl
from fedaux_pl.models import complete_options
from fedaux_pl.modules import ClientModule, DistillationModule
from fedaux_pl.modules.classifier_module import ClassifierModule, TrainedPart
from fedaux_pl.processes import Processes

_Module = TypeVar("_Module", bound=ClassifierModule)
_Settings = TypeVar("_Settings", bound=TrainingSettings)


@dataclass(frozen=True)
class TrainedStudents:
    """The students, and how clients and server train copies of them."""

    models: Students
    num_classes: int
    trained: TrainedPart  # all parameters, or the head alone
    reads_features: bool  # whether training batches hold h(x) instead of x


def create_context(
    trainer: pl.Trainer,
    data: FederatedDataModule,
    processes: Processes,
    seed: int,
    architectures: Sequence[str],
    carried: CarriedState,
    acceleration: Acceleration,
) -> Context:
    """Create what all parts of a run share; ``architectures`` names that of each client."""
    progress = find_progress(trainer)
    runner = create_runner(trainer, acceleration)
    runner.preparing = progress.stage
    return Context(
        data,
        runner,
        progress,
        processes,
        seed,
        list(architectures),
        carried,
        rounds=trainer.max_epochs or -1,
    )


def create_clients(
    context: Context,
    students: TrainedStudents,
    algorithm: Algorithm,
    local: LocalTraining,
    batchnorm_statistics: BatchNormOption,
) -> LocalClients:
    """Create the clients that run in this process."""
    local = _shorten_in_trial(local, context)
    modules = _create_modules(
        context,
        students,
        ClientModule,
        local,
        mu=algorithm.mu,
        corrected=algorithm.overrides("correction"),
        label_smoothing=local.label_smoothing,
        batchnorm=local.batchnorm,
        weighted=local.class_weights == "balanced",
    )
    return LocalClients(context, modules, local, algorithm, batchnorm_statistics)


def create_server(
    context: Context,
    students: TrainedStudents,
    algorithm: Algorithm,
    distillation: Distillation,
    models: Mapping[str, nn.Module],
) -> Server:
    """Create the server, which predicts with ``models`` and overwrites their weights."""
    distillation = _shorten_in_trial(distillation, context)
    distillers = _create_modules(
        context,
        students,
        DistillationModule,
        distillation,
        temperature=distillation.temperature,
    )
    head_only = students.trained == "head"
    return Server(context, algorithm, models, distillers, distillation, head_only)


def create_preparation(
    context: Context,
    students: Students,
    pretraining: Pretraining,
    secret_noise: bool,
    given_h0: Mapping[str, GivenH0],
    kept: Path | None,
) -> Preparation:
    """Create the preparation.

    Args:
        context: What all parts of the run share.
        students: The students as they are before the run.
        pretraining: How h_0 is learned.
        secret_noise: Whether the noise of releases comes from the operating system.
        given_h0: Each h_0 that was learned elsewhere, see ``choose_h0``.
        kept: The folder of each h_0 that is never learned again; None for none.
    """
    trainer = context.runner.trainer
    is_trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
    if is_trial and secret_noise:
        raise ConfigurationError(
            "fast_dev_run would make releases with secret noise, which cost privacy: set "
            "algorithm.privacy.secret to false in it"
        )
    return Preparation(
        context,
        _shorten_in_trial(pretraining, context),
        {name: complete_options(name, **students.options_of(name)) for name in students},
        None if is_trial else cache_folder(trainer),
        secret_noise,
        given_h0,
        kept,
    )


def _shorten_in_trial(settings: _Settings, context: Context) -> _Settings:
    """Train for one epoch at most in ``fast_dev_run``."""
    if not context.runner.trainer.fast_dev_run:  # type: ignore[attr-defined]
        return settings
    return replace(settings, epochs=min(1, settings.epochs))


def _create_modules(
    context: Context,
    students: TrainedStudents,
    module_type: Callable[..., _Module],
    settings: TrainingSettings,
    **options: Any,
) -> dict[str, _Module]:
    """Create a module for each architecture, which trains a copy of the student."""
    options |= {"trained": students.trained, "optimizer": settings.optimizer_settings}
    modules = {}
    for name, student in students.models.items():
        module = module_type(copy.deepcopy(student), students.num_classes, **options)
        module.reads_features = students.reads_features
        modules[name] = module.to(context.runner.device)
    return modules
