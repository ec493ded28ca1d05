"""The steps of the preparation phase (FedAUX, Algorithm 1), each of them cached by content."""

import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.callbacks.progress import StageProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.cache import find, keep, tensor_digest
from fedaux_pl.engine.clients import ClientPool
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.pretraining import SharedSimCLR
from fedaux_pl.engine.randomness import isolated_rng
from fedaux_pl.engine.released import pack, unpack
from fedaux_pl.engine.settings import Pretraining
from fedaux_pl.engine.stage import StageRunner
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import load_backbone, of_head
from fedaux_pl.modules import KNNAccuracy, SelfSupervised, SimCLR, create_pretraining
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring

_PRETRAIN = 30  # what a seed is for


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What the preparation works with.

    Attributes:
        data: Who holds which data.
        runner: Runs the pre-training.
        progress: Where to show it.
        cache: The folder of what was prepared before.
        settings: How h_0 is learned.
        seed: Of the run.
        processes: Those that share it.
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: StageProgress
    cache: Path
    settings: Pretraining
    seed: int
    processes: Processes

    def _cached(
        self, key: dict[str, str | int], build: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """What the first process finds, or else what all of them build together."""
        found = self.processes.broadcast(find(self.cache, key) if self.processes.first else None)
        if found is None:
            found = self.processes.broadcast(build())
            if self.processes.first:
                keep(self.cache, key, found)
        return found

    def pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        """P1: the weights of h_0, learned from D_aux starting at the model's, or from the cache.

        With no epochs h_0 is what the model starts with: weights that came with it, or random ones.
        """
        if self.settings.epochs == 0:
            return {k: v.cpu().clone() for k, v in model.state_dict().items() if not of_head(k)}
        key: dict[str, str | int] = {
            "kind": f"h0-{architecture}",
            "start": tensor_digest(*model.state_dict().values()),
            "training": json.dumps(dataclasses.asdict(self.settings), sort_keys=True),
            "precision": str(self.runner.trainer.precision),
            "data": self.data.fingerprints["auxiliary"],
            "seed": self.seed,
        }
        return self._cached(key, lambda: self._pretrain(architecture, model))

    def _pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        options = dataclasses.asdict(self.settings)
        epochs, batch_size = options.pop("epochs"), options.pop("batch_size")
        seed = derive_seed(self.seed, _PRETRAIN)
        # text is learned by every process alone, and by all of them alike
        shared: dict[type[SelfSupervised], Callable[..., SelfSupervised]] = {
            SimCLR: functools.partial(SharedSimCLR, processes=self.processes)
        }
        with isolated_rng(derive_seed(self.seed, _PRETRAIN, 0)):  # heads of the loss are drawn
            module = create_pretraining(copy.deepcopy(model), options, shared)
        batches = self.data.pretrain_batches(batch_size, seed=seed)
        with self.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:
            self.runner.run(
                module,
                batches,
                epochs,
                seed,
                on_epoch=lambda loss: stage.update(1, loss=loss),
                # what processes say to each other within a step is not recorded
                record=self.processes.world_size == 1,
            )
        self.runner.forget(module)
        return {key: tensor.cpu() for key, tensor in module.backbone_state().items()}

    def release_heads(
        self,
        pool: ClientPool,
        scoring: Scoring,
        h0: Mapping[str, nn.Module],
        architectures: Sequence[str],
        secret: bool,
    ) -> list[ReleasedHead]:
        """P2 and P3 at the clients, or what they released before: asking again would cost again."""
        weights = [tensor for model in h0.values() for tensor in model.state_dict().values()]
        key: dict[str, str | int] = {
            "kind": "scoring-heads",
            "scoring": json.dumps(scoring.release_settings(), sort_keys=True),
            "secret": int(secret),
            "architectures": " ".join(architectures),
            "h0": tensor_digest(*weights),
            "data": json.dumps(self.data.settings(), sort_keys=True),
            "seed": self.seed,
        }

        def build() -> dict[str, Tensor]:
            maps = {name: self.fit_map(scoring, model) for name, model in h0.items()}
            return pack(pool.prepare(scoring, h0, maps, secret))

        return unpack(self._cached(key, build), scoring)

    def fit_map(self, scoring: Scoring, h0: nn.Module) -> PublicMap:
        """What the server sends with h_0: a feature map that is fitted to D_aux."""
        negatives = predict_features(h0, self.data.negative_inputs)
        if not scoring.map.fitted:
            return scoring.fit_map(negatives, negatives)
        return scoring.fit_map(predict_features(h0, self.data.auxiliary_inputs), negatives)

    def score(
        self,
        scoring: Scoring,
        heads: Sequence[ReleasedHead],
        h0: Mapping[str, nn.Module],
        architectures: Sequence[str],
        inputs: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """P3 at the server: s_i(x) of every client on every part of the inputs, shapes (n, N).

        Scores are calibrated on the part ``distill`` alone.
        """
        features = {
            name: {part: predict_features(model, x) for part, x in inputs.items()}
            for name, model in h0.items()
        }
        # each row where it stays: of many clients there would be no room for the rows twice
        scores = {
            part: torch.empty(len(heads), len(x), device=x.device) for part, x in inputs.items()
        }
        guesses = {
            guess.client: guess
            for name in h0
            for guess in scoring.denoised([h for h in heads if architectures[h.client] == name])
        }
        for row, head in enumerate(heads):
            own = features[architectures[head.client]]
            logits = {part: guesses[head.client].logits(rows) for part, rows in own.items()}
            for part, values in logits.items():
                scores[part][row] = scoring.calibrator.scores(values, logits["distill"])
        return scores

    def knn_accuracy(self, h0: nn.Module) -> float:
        """How well h_0 tells the classes of the private data apart: for the experimenter's eyes.

        It uses the labels of all clients, which no server has.
        """
        test = self.data.test_examples
        # every process has all the data, and the same answer
        metric = KNNAccuracy(sync_on_compute=False).to(test.inputs.device)
        for client in range(self.data.num_clients):
            own = self.data.client(client)
            metric.update(predict_features(h0, own.inputs), own.targets, query=False)
        metric.update(predict_features(h0, test.inputs), test.targets, query=True)
        return float(metric.compute())


def extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with the features of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()
