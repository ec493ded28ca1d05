"""The models that clients use themselves: how they differ from the server's."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.engine.inference import BatchNormOption
from fedaux_pl.errors import ConfigurationError, counted, did_you_mean
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.lightning import MPSAccelerator, pl


def has_batchnorm(models: Iterable[nn.Module]) -> bool:
    """Return whether one of the models has a layer of BatchNorm."""
    layers = chain.from_iterable(model.modules() for model in models)
    return any(isinstance(layer, _BatchNorm) for layer in layers)


def check_own_statistics(data: FederatedDataModule) -> None:
    """Raise a ConfigurationError unless some clients can be measured by statistics of their own."""
    if "test" not in data.held_parts:  # a site measures itself
        return
    evaluated = (data.evaluation_examples, data.test_examples)
    if data.at_sites:
        if any(examples.clients is not None for examples in evaluated):
            raise ConfigurationError(
                "batchnorm_statistics 'own' needs the training data of clients, which are at the "
                "sites, but the server's test or validation data name clients: remove the names "
                "and set sites.evaluate to true, or use batchnorm_statistics 'running'"
            )
    elif not any(_names_clients(examples, data.client_names) for examples in evaluated):
        raise ConfigurationError(
            "batchnorm_statistics 'own' evaluates each client with the statistics of its training "
            "data, but neither test nor validation data name the clients that train: use data "
            "that name them (docs/silos.md), or batchnorm_statistics 'running'"
        )


def _names_clients(examples: Examples, names: Sequence[str]) -> bool:
    return examples.clients is not None and list(examples.client_names) == list(names)


def describe_client_models(
    algorithm: Algorithm,
    local: LocalTraining,
    statistics: BatchNormOption,
    students: Iterable[nn.Module],
    *,
    is_kept: bool = True,
) -> list[str]:
    """Return how the models of clients differ from the server's; empty if they do not.

    ``is_kept`` is whether the client has kept entries of a round (FedBN).
    """
    models = list(students)
    reasons = []
    if models and is_kept:
        entries = algorithm.own_entries(models[0])
        if entries:
            what = "weights" if len(entries) == len(models[0].state_dict()) else "BatchNorm"
            reasons.append(f"the {what} of its last round ({algorithm.name})")
    if local.fine_tuning:
        reasons.append(f"fine-tuning on its training data ({counted(local.fine_tuning, 'epoch')})")
    if statistics == "own" and has_batchnorm(models):
        reasons.append("BatchNorm statistics of its training data")
    return reasons


def attach_data(
    module: pl.LightningModule, data: FederatedDataModule, checkpoint: Path | None
) -> None:
    """Give a module that was loaded from a checkpoint its data, under a Trainer of its own.

    The Trainer predicts nothing. It has the checkpoint's number of rounds, on which schedules of
    the learning rate depend.
    """
    rounds = -1
    if checkpoint is not None:
        saved = load_checkpoint(checkpoint)["federation"]["settings"]
        rounds = saved.get("rounds", rounds)
    trainer = pl.Trainer(
        max_epochs=rounds,
        accelerator="cpu" if MPSAccelerator.is_available() else "auto",  # MPS has no float64
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_predict_batches=0,
    )
    trainer.predict(module, datamodule=data)


def find_client(name: str, data: FederatedDataModule) -> int:
    """Return the number of a client; raise a ConfigurationError with all names if there is none."""
    names = data.client_names
    if name not in names:
        raise ConfigurationError(
            f"client: got {name!r}{did_you_mean(name, names)}; expected one of {shorten(names)}"
        )
    return names.index(name)
