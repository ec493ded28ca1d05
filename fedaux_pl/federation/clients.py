"""The clients of a federation in this process."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedaux_pl.algorithms import Algorithm, LocalResult, Update
from fedaux_pl.callbacks.progress import Stage
from fedaux_pl.engine import Job, SeedPurpose, StageResult
from fedaux_pl.engine.inference import predict_features, predict_private_features
from fedaux_pl.engine.stage import DoneHook
from fedaux_pl.federation.averaging import trained_parameters
from fedaux_pl.federation.client_pool import Votes
from fedaux_pl.federation.fixed_features import FixedFeatures
from fedaux_pl.federation.public_features import PublicFeatures
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.settings import LocalTraining
from fedaux_pl.federation.state import RunState
from fedaux_pl.functional import blend_states, clipped_log_likelihood
from fedaux_pl.functional.averaging import State
from fedaux_pl.modules import ClientModule
from fedaux_pl.scoring import PublicMap, ReadBytes, ReleasedHead, SecureSum, Step, seeded_bytes


@dataclass
class LocalClients:
    """The clients of a simulation: they run in this process, or in several that share them.

    Attributes:
        run: What all parts of the run work with.
        state: What clients keep from round to round.
        modules: One for each architecture, which trains one client after another.
        settings: How clients train.
        algorithm: The method.
        round_metrics: Always empty; over real sites, which of them have answered.
        features: h(x) of the clients' data, if only heads are trained, by architecture.
    """

    at_sites = False
    run: Run
    state: RunState
    modules: Mapping[str, ClientModule]
    settings: LocalTraining
    algorithm: Algorithm
    round_metrics: dict[str, float] = field(default_factory=dict)
    features: dict[str, FixedFeatures] = field(default_factory=dict)

    def settle(self, step: Step, clients: Sequence[int], first: Sequence[ReleasedHead]) -> Step:
        """Return the step as it is."""
        return step

    def prepare(
        self,
        step: Step,
        features: PublicFeatures,
        maps: Mapping[str, PublicMap],
        clients: Sequence[int],
    ) -> list[ReleasedHead]:
        """Algorithm 1: let clients that have released nothing yet in this step release.

        ``maps`` has the public feature map of each architecture. Returns the heads of all
        processes, ordered by client; sites may not have answered.
        """
        h0 = features.h0
        names = self.run.architectures
        processes = self.run.processes
        mine = processes.local(clients)
        with self.run.progress.stage("releases", len(mine), "client") as stage:
            if step.summed:
                heads = []
                for name, model in h0.items():
                    group = [client for client in clients if names[client] == name]
                    if group:
                        heads.append(self._sum(step, model, maps[name], group, stage))
                return heads
            negatives = {}
            if step.scorer.uses_negatives:
                negatives = {name: features.negatives(name) for name in h0}
            released = {}
            for client in mine:
                name = names[client]
                released[client] = self.release(
                    client, step, h0[name], negatives.get(name), maps[name]
                )
                stage.update(1)
        released = processes.merge(released)
        return [released[client] for client in clients]

    def release(
        self,
        client: int,
        step: Step,
        h0: nn.Module,
        negatives: Tensor | None,
        public_map: PublicMap,
    ) -> ReleasedHead:
        """Return one client's release; ``negatives`` are h_0(x) on D^-, if the scorer uses it."""
        features, labels = self._private_features(client, step, h0)
        others = features[:0] if negatives is None else negatives
        noise_seed = None if step.scoring.privacy.secret else self._noise_seed(client)
        return step.release(client, features, others, public_map, noise_seed, labels)

    def _sum(
        self,
        step: Step,
        h0: nn.Module,
        public_map: PublicMap,
        group: Sequence[int],
        stage: Stage,
    ) -> ReleasedHead:
        """Return the secure sum over the clients of an architecture."""
        processes = self.run.processes
        classes = len(self.run.data.classes)
        sums: list[Tensor] = []  # one, over this process's clients, if it has any
        secure = SecureSum(step, public_map.row_length(h0), classes, len(group))
        for client in processes.local(group):
            integers = self.integers(client, step, h0, public_map)
            noisy = secure.add_noise(integers, self.noise_bytes(client, step, integers))
            sums = [sums[0] + noisy] if sums else [noisy]
            stage.update(1)
        total = torch.stack(list(chain(*processes.gather(sums)))).sum(dim=0)
        return secure.head(group, total, public_map, simulated=True)

    def integers(self, client: int, step: Step, h0: nn.Module, public_map: PublicMap) -> Tensor:
        """Return one client's vector of a secure sum, before noise."""
        features, labels = self._private_features(client, step, h0)
        return step.summable.integer_vector(public_map.private_rows(features), labels)

    def noise_bytes(self, client: int, step: Step, integers: Tensor) -> ReadBytes:
        """Return the source of the noise of a secure sum."""
        if step.scoring.privacy.secret:
            return os.urandom
        return seeded_bytes(self._noise_seed(client), step, integers)

    def _private_features(self, client: int, step: Step, h0: nn.Module) -> tuple[Tensor, Tensor]:
        """h_0(x) on D_i, and its one-hot labels."""
        examples = self.run.data.client(client)
        classes = len(self.run.data.classes)
        predict = predict_private_features if step.scoring.privacy.secret else predict_features
        return predict(h0, examples.inputs), one_hot(examples.targets.long(), classes)

    def _noise_seed(self, client: int) -> int:
        return self.run.derive_seed(SeedPurpose.RELEASE_NOISE, client)

    def train(
        self,
        round_: int,
        clients: Sequence[int],
        states: Mapping[str, State],
        payloads: Mapping[str, State],
    ) -> list[Update]:
        """Algorithm 2: let the selected clients of this process train from the server's model.

        The server sends ``states``, theta^P of each architecture, and ``payloads`` besides.
        """
        state = self.state
        processes = self.run.processes
        names = self.run.architectures
        sizes = self.run.data.client_sizes
        mine = processes.local(clients)
        self.update_features(states, mine)
        jobs = {i: self.job(round_, i, states[names[i]], payloads[names[i]]) for i in mine}
        with self.run.progress.stage("clients", len(mine), "client") as stage:
            results = self.run_jobs(jobs, lambda result: stage.update(1, loss=result.loss))
        own_entries = {n: self.algorithm.own_entries(m.model) for n, m in self.modules.items()}
        updates = []
        kept: dict[int, State] = {}
        for client, job in jobs.items():
            name = names[client]
            model = self.modules[name].model
            result = results[client]
            local = LocalResult(
                start=trained_parameters(model, states[name]),
                end=trained_parameters(model, result.state),
                steps=result.steps,
                lr=self.settings.lr if job.lr is None else job.lr(0),
                received=payloads[name],
                kept=state.client_states.get(client, {}),
            )
            payload, entries = self.algorithm.client_payload(local)
            entries = entries or {key: result.state[key] for key in own_entries[name]}
            if entries:
                kept[client] = entries
            updates.append(Update(client, name, sizes[client], result.loss, result.state, payload))
        # in every process: any of them may train a client in its next round
        state.client_states.update(processes.merge(kept))
        if self.algorithm.keeps_optimizer:
            optimizers = {i: r.optimizer_state for i, r in results.items() if r.optimizer_state}
            state.client_optimizers.update(processes.merge(optimizers))
        return updates

    def update_features(self, states: Mapping[str, State], clients: Sequence[int]) -> None:
        """Compute h(x) of the data of clients whose modules train on it."""
        for name, module in self.modules.items():
            group = [client for client in clients if self.run.architectures[client] == name]
            if not group or not module.reads_features:
                continue
            if name not in self.features:
                self.features[name] = FixedFeatures(self.run)
            self.features[name].update(module.model, states[name], group)

    def run_jobs(
        self, jobs: Mapping[int, Job], on_done: DoneHook | None = None
    ) -> dict[int, StageResult]:
        """Run jobs of clients: those of an architecture at once, as the runner may train them."""
        results: dict[int, StageResult] = {}
        for name, module in self.modules.items():
            clients = [client for client in jobs if self.run.architectures[client] == name]
            group = [jobs[client] for client in clients]
            trained = self.run.runner.run_all(module, group, on_done=on_done)
            results |= zip(clients, trained, strict=True)
        return results

    def evaluate(self, round_: int) -> dict[str, float]:
        """Return no metrics: all test data are the server's."""
        return {}

    def vote(
        self,
        round_: int,
        averages: Mapping[str, State],
        students: Mapping[str, State],
        weights: Sequence[float],
    ) -> Votes:
        """Return the votes of all clients; processes share the models, not the clients.

        A client votes by the data that it holds out or, without any, by its training data.
        """
        examples = self.run.data.voting_examples
        processes = self.run.processes
        candidates = [(name, weight) for name in students for weight in weights]
        sums = {}
        for name, weight in processes.local(candidates):
            model = self.modules[name].model
            state = blend_states(averages[name], students[name], weight)
            logits = self.run.runner.predict(model, state, examples.inputs)
            sums[name, weight] = clipped_log_likelihood(logits, examples.targets).cpu()
        sums = processes.merge(sums)
        votes = {name: torch.stack([sums[name, weight] for weight in weights]) for name in students}
        return Votes(votes, len(self.run.architectures))

    def finish(self, round_: int, states: Mapping[str, State]) -> None:
        """Do nothing: the clients of a simulation need no final models."""

    def start(self, client: int, state: State) -> State:
        """Return the model at which a client starts: the server's with the client's own entries."""
        model = self.modules[self.run.architectures[client]].model
        kept = self.state.client_states.get(client, {})
        names = self.algorithm.own_entries(model)
        return {**state, **{name: kept[name] for name in names if name in kept}}

    def job(self, round_: int, client: int, state: State, payload: State) -> Job:
        """Return the training of a client in a round.

        Args:
            round_: The number of the round.
            client: The client.
            state: The server's model.
            payload: What the server sends besides.
        """
        kept = self.state.client_states.get(client, {})
        batches = self.run.data.client_batches(
            client,
            self.settings.batch_size,
            round_,
            balanced=self.settings.class_weights == "balanced",
            augmentation=self.settings.augment,
        )
        fixed = self.features.get(self.run.architectures[client])
        if fixed is not None:  # steps read h(x) in place of x
            batches.tensors = (fixed.values, *batches.tensors[1:])
        return Job(
            batches,
            self.settings.epochs,
            seed=self.run.derive_seed(SeedPurpose.CLIENT_TRAINING, round_, client),
            state=self.start(client, state),
            optimizer_state=self.state.client_optimizers.get(client),
            keep_optimizer=self.algorithm.keeps_optimizer,
            correction=self.algorithm.correction(payload, kept),
            name=self.run.data.client_names[client],
            lr=self.run.lr_of(self.settings, round_),
        )
