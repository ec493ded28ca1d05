"""The clients behind one interface: the server calls a pool and does not know where clients run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from fedaux_pl.algorithms import Update
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.seeds import SeedPurpose
from fedaux_pl.engine.stage import Job
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.functional.averaging import State
from fedaux_pl.modules import ClientModule
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring


class ClientPool(Protocol):
    """All clients of a federation."""

    def prepare(
        self,
        scoring: Scoring,
        h0: Mapping[str, nn.Module],
        maps: Mapping[str, PublicMap],
        secret_noise: bool,
    ) -> list[ReleasedHead]:
        """Algorithm 1: every client computes its scoring head and releases it, once.

        Args:
            scoring: What clients release, and at which privacy.
            h0: h_0 of each architecture.
            maps: The public feature map of each architecture.
            secret_noise: Whether the noise comes from the operating system, not from the seed.

        Returns:
            The released heads of all clients, ordered by id.
        """

    def train(
        self, round_: int, clients: Sequence[int], states: Mapping[str, State]
    ) -> list[Update]:
        """Algorithm 2: every selected client trains from the server's model.

        Args:
            round_: t, the number of the round.
            clients: S_t, the ids of the selected clients.
            states: theta^P, the server's model of each architecture.

        Returns:
            The updates of those clients that this process has trained.
        """


@dataclass
class LocalClients:
    """A pool of clients that run in this process, or in several processes that share them.

    Attributes:
        context: The data and the tools of the run.
        modules: The module of each architecture, which trains one client after another. Between
            two rounds its weights mean nothing.
        architectures: The architecture of each client.
        settings: How clients train.
        optimizer_states: The optimizer state of each client, if they are carried between rounds.
    """

    context: Context
    modules: Mapping[str, ClientModule]
    architectures: Sequence[str]
    settings: LocalTraining
    optimizer_states: dict[int, dict[str, Any]]

    def prepare(
        self,
        scoring: Scoring,
        h0: Mapping[str, nn.Module],
        maps: Mapping[str, PublicMap],
        secret_noise: bool,
    ) -> list[ReleasedHead]:
        """Algorithm 1: every client releases its scoring head; ordered by id."""
        data, processes = self.context.data, self.context.processes
        negatives = {
            name: predict_features(model, data.negative_inputs)
            for name, model in h0.items()
            if scoring.scorer.uses_negatives
        }
        released = {}
        mine = processes.local(list(enumerate(self.architectures)))
        with self.context.progress.stage("scoring heads", len(mine), "client") as stage:
            for client, name in mine:
                own = predict_features(h0[name], data.client(client).inputs)
                others = negatives.get(name, own[:0])
                seed = self.context.derive_seed(SeedPurpose.RELEASE_NOISE, client)
                released[client] = scoring.release(
                    client, own, others, maps[name], None if secret_noise else seed
                )
                stage.update(1)
        released = processes.merge(released)
        return [released[client] for client in range(len(self.architectures))]

    def train(
        self, round_: int, clients: Sequence[int], states: Mapping[str, State]
    ) -> list[Update]:
        """Algorithm 2: trains the selected clients of this process, architecture by architecture.

        All clients of an architecture are one call of the runner, which may train them together.
        """
        updates: dict[int, Update] = {}
        optimizers: dict[int, dict[str, Any]] = {}
        mine = self.context.processes.local(clients)
        with self.context.progress.stage("clients", len(mine), "client") as stage:
            for name, module in self.modules.items():
                own = [client for client in mine if self.architectures[client] == name]
                results = self.context.runner.run_all(
                    module,
                    [self._job(round_, client, states[name]) for client in own],
                    on_done=lambda result: stage.update(1, loss=result.loss),
                )
                for client, result in zip(own, results, strict=True):
                    if result.optimizer_state is not None:
                        optimizers[client] = result.optimizer_state
                    size = self.context.data.client_sizes[client]
                    updates[client] = Update(client, name, size, result.loss, result.state)
        if self.context.carry_optimizers:
            # in every process: any of them may train a client in its next round
            self.optimizer_states.update(self.context.processes.merge(optimizers))
        return [updates[client] for client in mine]

    def _job(self, round_: int, client: int, state: State) -> Job:
        return Job(
            self.context.data.client_batches(client, self.settings.batch_size, seed=round_),
            self.settings.epochs,
            seed=self.context.derive_seed(SeedPurpose.CLIENT_TRAINING, round_, client),
            state=state,
            optimizer_state=self.optimizer_states.get(client),
            keep_optimizer=self.context.carry_optimizers,
        )
