"""The clients, the server and the preparation of a run, created from a federation's settings."""

from dataclasses import replace

from fedaux_pl.callbacks.progress import find_progress
from fedaux_pl.callbacks.report import cache_folder
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.create_runner import create_runner
from fedaux_pl.federation.federation_module import FederationModule
from fedaux_pl.federation.preparation import Preparation
from fedaux_pl.federation.server import Server
from fedaux_pl.models import complete_options, options_of
from fedaux_pl.modules import ClientModule, DistillationModule


def assemble(federation: FederationModule) -> tuple[LocalClients, Server, Preparation]:
    """Create the parts, when the Trainer, the data and the students are there."""
    trainer, algorithm, trained = federation.trainer, federation.algorithm, federation.trained
    local, distillation = federation.local, federation.distillation
    pretraining = federation.pretraining
    cache = cache_folder(trainer)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        if algorithm.secret_noise:
            raise ConfigurationError(
                "fast_dev_run would make releases with secret noise, which cost privacy: set "
                "algorithm.privacy.secret to false in it"
            )
        local, distillation = replace(local, epochs=1), replace(distillation, epochs=1)
        pretraining = replace(pretraining, epochs=min(1, pretraining.epochs))
        cache = None
    runner, progress = create_runner(trainer), find_progress(trainer)
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
        carry_optimizers=federation.carry,
        rounds=trainer.max_epochs or -1,
    )
    modules = federation.create_modules(
        ClientModule,
        local,
        trained=trained,
        mu=algorithm.mu,
        corrected=algorithm.has_payload,
        label_smoothing=local.label_smoothing,
        batchnorm=local.batchnorm,
        weighted=local.class_weights == "balanced",
    )
    pool = LocalClients(context, modules, local, algorithm)
    if federation.create_pool is not None:
        pool = federation.create_pool(context, local)
    server = Server(
        context,
        algorithm,
        models={name: module.model for name, module in modules.items()},
        distillers=federation.create_modules(
            DistillationModule,
            distillation,
            trained=trained,
            temperature=distillation.temperature,
            hard_labels=distillation.hard_labels,
        ),
        settings=distillation,
        batchnorm=federation.batchnorm,
        head_only=federation.head_only,
    )
    names, options = federation.clients, federation.model_options
    complete = {name: complete_options(name, **options_of(name, names, options)) for name in names}
    preparation = Preparation(context, pretraining, complete, cache, algorithm.secret_noise)
    return pool, server, preparation
