"""The steps of the preparation phase (FedAUX, Algorithm 1), each of them cached by content."""

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.callbacks.progress import StageProgress
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.data.cache import cached, tensor_digest
from fedaux_pl.engine.clients import ClientPool
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.randomness import isolated_rng
from fedaux_pl.engine.settings import Pretraining
from fedaux_pl.engine.stage import StageRunner
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import load_backbone, of_head
from fedaux_pl.modules import KNNAccuracy, Release, ReleasedHead, Scoring, create_pretraining

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
    """

    data: FederatedDataModule
    runner: StageRunner
    progress: StageProgress
    cache: Path
    settings: Pretraining
    seed: int

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
        return cached(self.cache, key, lambda: self._pretrain(architecture, model))

    def _pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        options = dataclasses.asdict(self.settings)
        epochs, batch_size = options.pop("epochs"), options.pop("batch_size")
        seed = derive_seed(self.seed, _PRETRAIN)
        with isolated_rng(derive_seed(self.seed, _PRETRAIN, 0)):  # heads of the loss are drawn
            module = create_pretraining(copy.deepcopy(model), options)
        batches = self.data.pretrain_batches(batch_size, seed=seed)
        with self.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:
            self.runner.run(
                module, batches, epochs, seed, on_epoch=lambda loss: stage.update(1, loss=loss)
            )
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
            "scoring": json.dumps(dataclasses.asdict(scoring), sort_keys=True),
            "secret": int(secret),
            "architectures": " ".join(architectures),
            "h0": tensor_digest(*weights),
            "data": json.dumps(self.data.settings(), sort_keys=True),
            "seed": self.seed,
        }
        kept = cached(self.cache, key, lambda: pack(pool.prepare(scoring, h0, secret)))
        return unpack(kept, scoring)

    def score(
        self,
        heads: Sequence[ReleasedHead],
        h0: Mapping[str, nn.Module],
        architectures: Sequence[str],
        inputs: Tensor,
    ) -> Tensor:
        """P3 at the server: s_i(x) of every client on public inputs, shape (n, N)."""
        features = {name: predict_features(model, inputs) for name, model in h0.items()}
        scores = [head.scores(features[architectures[head.client]]).float() for head in heads]
        return torch.stack(scores)

    def knn_accuracy(self, h0: nn.Module) -> float:
        """How well h_0 tells the classes of the private data apart: for the experimenter's eyes.

        It uses the labels of all clients, which no server has.
        """
        test = self.data.test_examples
        metric = KNNAccuracy().to(test.inputs.device)
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


def pack(heads: Sequence[ReleasedHead]) -> dict[str, Tensor]:
    """Released heads as tensors; architectures may differ in the dimension of their weights."""
    numbers = [[head.bound, head.release.sigma, head.release.sensitivity] for head in heads]
    weights = {f"weight/{head.client}": head.weight.cpu() for head in heads}
    return {"numbers": torch.tensor(numbers, dtype=torch.float64), **weights}


def unpack(tensors: Mapping[str, Tensor], scoring: Scoring) -> list[ReleasedHead]:
    """Tensors as released heads, with the settings under which they were released."""
    record: dict[str, Any] = {"epsilon": float("inf"), "delta": 0.0, "mechanism": "none"}
    if scoring.epsilon is not None:
        record = {
            "epsilon": scoring.epsilon,
            "delta": scoring.delta,
            "mechanism": scoring.mechanism,
        }
    flaw = scoring.create_head().flaw
    heads = []
    for client, (bound, sigma, sensitivity) in enumerate(tensors["numbers"].tolist()):
        release = Release(sigma=sigma, sensitivity=sensitivity, flaw=flaw, **record)
        weight = tensors[f"weight/{client}"]
        heads.append(ReleasedHead(client, weight, bound, scoring.xi, release))
    return heads


def describe_privacy(heads: Sequence[ReleasedHead], secret_noise: bool) -> list[str]:
    """What was released under which guarantee, and what was not, a sentence each."""
    lines = []
    if heads:
        release = heads[0].release
        if release.mechanism == "none":
            lines.append("each client released its scoring head once, WITHOUT noise: not private")
        else:
            sigmas = [head.release.sigma for head in heads]
            lines.append(
                f"each client released its scoring head once: epsilon {release.epsilon:g}, delta "
                f"{release.delta:g}, {release.mechanism} Gaussian mechanism, noise of standard "
                f"deviation {max(sigmas):.4g} at sensitivity {release.sensitivity:.4g}"
            )
            if not secret_noise:
                lines.append(
                    "its noise comes from the seed of the run, so that the simulation can be "
                    "repeated: it hides nothing from those who know the seed (secret_noise: true)"
                )
        if release.flaw:
            lines.append(f"this guarantee does NOT hold: {release.flaw}")
    lines.append("the model updates that clients send in every round are NOT private")
    return lines
