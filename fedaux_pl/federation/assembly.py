"""The clients and the server of a run, and the modules that they train.

In a trial (``fast_dev_run``) every stage of training has at most one epoch.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.server import Server
from fedaux_pl.federation.settings import Distillation, LocalTraining, TrainingSettings
from fedaux_pl.federation.state import RunState
from fedaux_pl.federation.students import Students
from fedaux_pl.modules import ClientModule, DistillationModule
from fedaux_pl.modules.classifier_module import ClassifierModule, TrainedPart

_Module = TypeVar("_Module", bound=ClassifierModule)
_Settings = TypeVar("_Settings", bound=TrainingSettings)


@dataclass(frozen=True)
class TrainedStudents:
    """The students, and how clients and server train copies of them."""

    models: Students
    num_classes: int
    trained: TrainedPart  # all parameters, or the head alone
    reads_features: bool  # whether training batches hold h(x) instead of x


def create_clients(
    run: Run,
    state: RunState,
    students: TrainedStudents,
    algorithm: Algorithm,
    local: LocalTraining,
) -> LocalClients:
    """Create the clients that run in this process."""
    local = _shorten_in_trial(local, run)
    modules = _create_modules(
        run,
        students,
        ClientModule,
        local,
        mu=algorithm.mu,
        corrected=algorithm.overrides("correction"),
        label_smoothing=local.label_smoothing,
        batchnorm=local.batchnorm,
        weighted=local.class_weights == "balanced",
    )
    return LocalClients(run, state, modules, local, algorithm)


def create_server(
    run: Run,
    state: RunState,
    students: TrainedStudents,
    algorithm: Algorithm,
    distillation: Distillation,
    models: Mapping[str, nn.Module],
) -> Server:
    """Create the server, which predicts with ``models`` and overwrites their weights."""
    distillation = _shorten_in_trial(distillation, run)
    distillers = _create_modules(
        run,
        students,
        DistillationModule,
        distillation,
        temperature=distillation.temperature,
    )
    head_only = students.trained == "head"
    return Server(run, state, algorithm, models, distillers, distillation, head_only)


def _shorten_in_trial(settings: _Settings, run: Run) -> _Settings:
    """Train for one epoch at most in ``fast_dev_run``."""
    if not run.is_trial:
        return settings
    return replace(settings, epochs=min(1, settings.epochs))


def _create_modules(
    run: Run,
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
        modules[name] = module.to(run.runner.device)
    return modules
