"""Models that clients use themselves, where they differ from the server's.

A client may keep its own BatchNorm (FedBN), be fine-tuned on its data (``local.fine_tuning``), and
use BatchNorm statistics of its own data (``batchnorm_statistics: own``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.engine import SeedPurpose
from fedaux_pl.engine.checkpoints import load_checkpoint
from fedaux_pl.engine.inference import (
    BatchNormOption,
    estimate_statistics,
    statistics_batch_size,
)
from fedaux_pl.errors import ConfigurationError, counted, did_you_mean
from fedaux_pl.federation.clients import LocalClients
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.functional.averaging import State
from fedaux_pl.lightning import MPSAccelerator, pl
from fedaux_pl.modules.state_dicts import copy_state


@dataclass(frozen=True)
class PersonalModels:
    """Makes the models that clients use themselves from those of the server.

    Attributes:
        clients: The clients, with their data and what they keep.
        statistics: ``own`` for BatchNorm statistics of each client's training data.
    """

    clients: LocalClients
    statistics: BatchNormOption

    def states(
        self, t: int, clients: Sequence[int], theta: Mapping[str, State]
    ) -> dict[int, State]:
        """Return the models of clients: FedBN's entries, fine-tuning, then statistics.

        Args:
            t: The last round, which seeds the fine-tuning.
            clients: The clients.
            theta: The server's model of each architecture.
        """
        names = self.clients.run.architectures
        if self.clients.settings.fine_tuning:
            models = self._fine_tune(t, {i: theta[names[i]] for i in clients})
        else:
            models = {i: self.clients.start(i, theta[names[i]]) for i in clients}
        if self.statistics == "own":
            models = {i: self.with_own_statistics(i, state) for i, state in models.items()}
        return models

    def with_own_statistics(self, client: int, state: State) -> State:
        """Return a model with the BatchNorm statistics of the client's training data.

        The data are read in a random order that is always the same, because data are often sorted
        by class. A client with a single sample keeps the statistics of ``state``, because one
        sample has no variance.
        """
        data = self.clients.run.data
        count = data.client_sizes[client]
        if count < 2:
            return state
        model = self.clients.modules[self.clients.run.architectures[client]].model
        model.load_state_dict(state)
        size = statistics_batch_size(data.all_inputs[0], count)
        estimate_statistics(model, data.client_batches(client, size))
        return copy_state(model)

    def logits(
        self, t: int, examples: Examples, logits: Tensor, theta: Mapping[str, State]
    ) -> Tensor:
        """Predict each sample with the model of the client that owns it.

        Args:
            t: The last round.
            examples: Data that record which client a sample belongs to.
            logits: Those of the server's models, shape (N, C), for the first N of ``examples``.
            theta: The server's model of each architecture.
        """
        assert examples.clients is not None  # noqa: S101 - the caller has checked it
        owners = examples.clients[: len(logits)].cpu()
        logits = logits.clone()
        for client, state in self.states(t, sorted({*owners.tolist()}), theta).items():
            rows = (owners == client).nonzero().flatten().to(logits.device)
            model = self.clients.modules[self.clients.run.architectures[client]].model
            logits[rows] = self.clients.run.runner.predict(model, state, examples.inputs[rows])
        return logits

    def network(
        self,
        t: int,
        client: int,
        network: nn.Module,
        theta: Mapping[str, State],
        threads: int | None,
    ) -> nn.Module:
        """Return a network with the weights of a client's model, in evaluation mode.

        ``threads`` is the number of CPU threads of the evaluation, with which sums are equal.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            [state] = self.states(t, [client], theta).values()
        finally:
            torch.set_num_threads(before)
        network.load_state_dict(state)
        return network.eval()

    def _fine_tune(self, t: int, states: Mapping[int, State]) -> dict[int, State]:
        """Train the server's model on the data of each client."""
        run = self.clients.run
        theta = {run.architectures[client]: state for client, state in states.items()}
        self.clients.update_features(theta, list(states))
        jobs = {}
        for client, state in states.items():
            jobs[client] = replace(
                self.clients.job(t, client, state, {}),
                epochs=self.clients.settings.fine_tuning,
                seed=run.derive_seed(SeedPurpose.FINE_TUNING, t, client),
                optimizer_state=None,
                keep_optimizer=False,
                correction={},
            )
        return {client: result.state for client, result in self.clients.run_jobs(jobs).items()}


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


def refuse_client_model(name: str, have_others: bool) -> None:
    """Raise a ConfigurationError for a client without a model of its own.

    ``have_others`` is whether other clients of the run have one.
    """
    remedy = (
        "set batchnorm_statistics to 'own' (of a network with BatchNorm) or "
        "local.fine_tuning to at least 1, or choose FedBN"
    )
    if have_others:
        remedy = "it has taken part in no round"
    raise ConfigurationError(
        f"client_model: {name} has no model of its own in this run, only the server's: {remedy}"
    )


def find_client(name: str, data: FederatedDataModule) -> int:
    """Return the number of a client; raise a ConfigurationError with all names if there is none."""
    names = data.client_names
    if name not in names:
        raise ConfigurationError(
            f"client: got {name!r}{did_you_mean(name, names)}; expected one of {shorten(names)}"
        )
    return names.index(name)
