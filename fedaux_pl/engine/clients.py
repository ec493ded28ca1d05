"""The clients, behind one seam: the server asks a pool, and does not know where they are.

What a client computes is written here once, as functions of what it is sent and its own data.
``LocalClients`` runs them in this process, or in several that share them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from fedaux_pl.algorithms import Update
from fedaux_pl.callbacks.progress import StageProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.settings import LocalTraining
from fedaux_pl.engine.stage import Job, StageRunner
from fedaux_pl.functional import derive_seed
from fedaux_pl.modules import ClientModule
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring

_TRAIN, _NOISE = 10, 11  # what a seed is for


class ClientPool(Protocol):
    """All clients of a federation, wherever they are."""

    def train(
        self, round_: int, ids: Sequence[int], states: Mapping[str, Mapping[str, Tensor]]
    ) -> list[Update]:
        """Algorithm 2, T1: every selected client trains from the server's model.

        Returns:
            What the clients sent whom this process is in charge of.
        """

    def prepare(
        self,
        scoring: Scoring,
        h0: Mapping[str, nn.Module],
        maps: Mapping[str, PublicMap],
        secret_noise: bool,
    ) -> list[ReleasedHead]:
        """Algorithm 1, P2 and P3: every client sums up its data and releases that, once.

        h_0 and the public feature map are given for each architecture.
        """


class LocalClients:
    """Clients that live in this process, with the data of a data module.

    Args:
        data: Who holds which data.
        runner: Runs the training.
        modules: The ClientModule of each architecture; its weights are replaced for every client.
        architectures: The architecture of each client.
        settings: How clients train.
        optimizer_states: Where each client's optimizer is kept until the next round in which it
            takes part; None to start afresh.
        seed: What all of a client's randomness is derived from.
        progress: Where to show which client is at work.
        processes: Those that share the clients.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        runner: StageRunner,
        modules: Mapping[str, ClientModule],
        architectures: Sequence[str],
        settings: LocalTraining,
        optimizer_states: dict[int, dict[str, Any]] | None,
        seed: int,
        progress: StageProgress,
        processes: Processes,
    ) -> None:
        self.data = data
        self.runner = runner
        self.modules = modules
        self.architectures = architectures
        self.settings = settings
        self.seed = seed
        self.progress = progress
        self.optimizer_states = optimizer_states
        self.processes = processes

    def prepare(
        self,
        scoring: Scoring,
        h0: Mapping[str, nn.Module],
        maps: Mapping[str, PublicMap],
        secret_noise: bool,
    ) -> list[ReleasedHead]:
        """Lets every client release its scoring head, in the order of their ids."""
        negatives = {
            name: predict_features(model, self.data.negative_inputs)
            for name, model in h0.items()
            if scoring.scorer.uses_negatives
        }
        released = {}
        mine = self.processes.share(list(enumerate(self.architectures)))
        with self.progress.stage("scoring heads", len(mine), "client") as stage:
            for client, architecture in mine:
                own = predict_features(h0[architecture], self.data.client(client).inputs)
                noise_seed = None if secret_noise else derive_seed(self.seed, _NOISE, client)
                public, others = maps[architecture], negatives.get(architecture, own[:0])
                released[client] = scoring.release(client, own, others, public, noise_seed)
                stage.update(1)
        released = self.processes.merge(released)
        return [released[client] for client in range(len(self.architectures))]

    def train(
        self, round_: int, ids: Sequence[int], states: Mapping[str, Mapping[str, Tensor]]
    ) -> list[Update]:
        """Trains the selected clients, those of one architecture together where that is faster."""
        updates: dict[int, Update] = {}
        optimizers: dict[int, dict[str, Any]] = {}
        mine = self.processes.share(ids)
        with self.progress.stage("clients", total=len(mine), unit="client") as stage:
            for architecture, module in self.modules.items():
                own = [client for client in mine if self.architectures[client] == architecture]
                results = self.runner.run_all(
                    module,
                    [self._job(round_, client, states[architecture]) for client in own],
                    on_done=lambda result: stage.update(1, loss=result.loss),
                )
                for client, result in zip(own, results, strict=True):
                    if result.optimizer_state is not None:
                        optimizers[client] = result.optimizer_state
                    assert result.state is not None  # noqa: S101 - the job said where it starts
                    updates[client] = Update(
                        client,
                        architecture,
                        result.state,
                        self.data.client_sizes[client],
                        result.loss,
                    )
        if self.optimizer_states is not None:
            # to all: any of them may be in charge of a client when it comes again
            self.optimizer_states.update(self.processes.merge(optimizers))
        return [updates[client] for client in mine]

    def _job(self, round_: int, client: int, state: Mapping[str, Tensor]) -> Job:
        carried = None if self.optimizer_states is None else self.optimizer_states.get(client)
        return Job(
            self.data.client_batches(client, self.settings.batch_size, seed=round_),
            self.settings.epochs,
            seed=derive_seed(self.seed, _TRAIN, round_, client),
            state=state,
            optimizer_state=carried,
            keep_optimizer=self.optimizer_states is not None,
        )
