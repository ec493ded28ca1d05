"""The clients, the server and the preparation of a run, created from a federation's settings."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from fedaux_pl.callbacks.progress import find_progress
from fedaux_pl.callbacks.report import cache_folder
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.create_runner import create_runner
from fedaux_pl.federation.federation_module import FederationModule
from fedaux_pl.federation.given_h0 import all_given_h0
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.server import Server
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.models import complete_options
from fedaux_pl.modules import ClientModule, DistillationModule
from fedaux_pl.modules.classifier_module import ClassifierModule

_Module = TypeVar("_Module", bound=ClassifierModule)


def assemble(federation: FederationModule) -> tuple[ClientPool, Server, Preparation]:
    """Create the parts, when the Trainer, the data and the students are there."""
    trainer = federation.trainer
    algorithm = federation.algorithm
    local = federation.local
    distillation = federation.distillation
    pretraining = federation.pretraining
    cache = cache_folder(trainer)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        if algorithm.secret_noise:
            raise ConfigurationError(
                "fast_dev_run would make releases with secret noise, which cost privacy: set "
                "algorithm.privacy.secret to false in it"
            )
        local = replace(local, epochs=1)
        distillation = replace(distillation, epochs=1)
        pretraining = replace(pretraining, epochs=min(1, pretraining.epochs))
        cache = None
    progress = find_progress(trainer)
    runner = create_runner(trainer, federation.acceleration)
    runner.preparing = progress.stage
    runner.adopt(federation.students)
    context = Context(
        federation.data,
        runner,
        progress,
        federation.processes,
        federation.seed,
        federation.architectures,
        federation.carried,
        rounds=trainer.max_epochs or -1,
    )
    modules = _create_modules(
        federation,
        ClientModule,
        local,
        mu=algorithm.mu,
        corrected=algorithm.overrides("correction"),
        label_smoothing=local.label_smoothing,
        batchnorm=local.batchnorm,
        weighted=local.class_weights == "balanced",
    )
    clients = LocalClients(context, modules, local, algorithm, federation.batchnorm_statistics)
    pool = federation.role.create_pool(clients)
    server = Server(
        context,
        algorithm,
        models={name: module.model for name, module in modules.items()},
        distillers=_create_modules(
            federation,
            DistillationModule,
            distillation,
            temperature=distillation.temperature,
        ),
        settings=distillation,
        head_only=federation.head_only,
    )
    students = federation.students
    options = {name: complete_options(name, **students.options_of(name)) for name in modules}
    preparation = Preparation(
        context,
        pretraining,
        options,
        cache,
        algorithm.secret_noise,
        all_given_h0(federation),
        federation.role.kept,
    )
    return pool, server, preparation


def _create_modules(
    federation: FederationModule,
    module_type: Callable[..., _Module],
    settings: TrainingSettings,
    **options: Any,
) -> dict[str, _Module]:
    """Create a module for each architecture, which trains a copy of the student."""
    device = federation.trainer.strategy.root_device
    options |= {"trained": federation.trained, "optimizer": settings.optimizer_settings}
    modules = {}
    for name, student in federation.students.items():
        module = module_type(copy.deepcopy(student), len(federation.classes), **options)
        module.reads_features = federation.reads_features
        modules[name] = module.to(device)
    return modules
