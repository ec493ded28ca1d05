"""The steps of the preparation phase (FedAUX, Algorithm 1), with a cache on disk."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data.cache import load_cached, save_cached, tensor_digest
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.seeds import SeedPurpose, isolated_rng
from fedaux_pl.federation.clients import ClientPool
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import load_backbone, of_head
from fedaux_pl.modules import KNNAccuracy, create_pretraining
from fedaux_pl.scoring import PublicMap, ReleasedHead, Scoring
from fedaux_pl.scoring.records import pack, unpack


@dataclass(frozen=True)
class Preparation:
    """Pre-training, the release of scoring heads, and scores.

    Attributes:
        context: The data and the tools of the run.
        settings: How h_0 is learned.
        architectures: The architecture of each client.
        cache: The folder with the results of earlier runs.
    """

    context: Context
    settings: Pretraining
    architectures: Sequence[str]
    cache: Path

    def pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        """The weights of h_0, learned from D_aux starting at the model's weights.

        With 0 epochs, h_0 is the model as it is: with weights that came with it, or random ones.
        """
        if self.settings.epochs == 0:
            return {k: v.cpu().clone() for k, v in model.state_dict().items() if not of_head(k)}
        key: dict[str, str | int] = {
            "kind": f"h0-{architecture}",
            "start": tensor_digest(*model.state_dict().values()),
            "training": json.dumps(asdict(self.settings), sort_keys=True),
            "precision": str(self.context.runner.trainer.precision),
            "data": self.context.data.fingerprints["auxiliary"],
            "seed": self.context.seed,
        }
        return self._cached(key, lambda: self._pretrain(architecture, model))

    def _pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        options = asdict(self.settings)
        epochs, batch_size = options.pop("epochs"), options.pop("batch_size")
        seed = self.context.derive_seed(SeedPurpose.PRETRAINING)
        with isolated_rng(self.context.derive_seed(SeedPurpose.PRETRAINING, 0)):
            # the parameters of the loss are random
            module = create_pretraining(copy.deepcopy(model), options)
        module.share_batches(self.context.processes)
        batches = self.context.data.pretrain_batches(batch_size, seed=seed)
        with self.context.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:
            self.context.runner.run(
                module, batches, epochs, seed, on_epoch=lambda loss: stage.update(1, loss=loss)
            )
        self.context.runner.forget(module)
        return {key: tensor.cpu() for key, tensor in module.backbone_state().items()}

    def release_heads(
        self, pool: ClientPool, scoring: Scoring, h0: Mapping[str, nn.Module], secret_noise: bool
    ) -> list[ReleasedHead]:
        """The scoring heads of all clients, ordered by id.

        Heads in the cache are used again: a second release would spend privacy budget again.
        """
        weights = [tensor for model in h0.values() for tensor in model.state_dict().values()]
        key: dict[str, str | int] = {
            "kind": "scoring-heads",
            "scoring": json.dumps(scoring.release_settings(), sort_keys=True),
            "secret": int(secret_noise),
            "architectures": " ".join(self.architectures),
            "h0": tensor_digest(*weights),
            "data": json.dumps(self.context.data.settings(), sort_keys=True),
            "seed": self.context.seed,
        }

        def release() -> dict[str, Tensor]:
            maps = {name: self._fit_map(scoring, model) for name, model in h0.items()}
            return pack(pool.prepare(scoring, h0, maps, secret_noise))

        return unpack(self._cached(key, release), scoring)

    def _fit_map(self, scoring: Scoring, h0: nn.Module) -> PublicMap:
        data = self.context.data
        negatives = predict_features(h0, data.negative_inputs)
        if not scoring.feature_map.uses_auxiliary:
            return scoring.fit_map(negatives, negatives)
        return scoring.fit_map(predict_features(h0, data.auxiliary_inputs), negatives)

    def score(
        self, scoring: Scoring, heads: Sequence[ReleasedHead], h0: Mapping[str, nn.Module]
    ) -> dict[str, Tensor]:
        """s_i(x) of every client on D_distill and on the test data, shapes (n, N).

        Both are calibrated on D_distill.
        """
        data = self.context.data
        inputs = {"distill": data.distill_inputs, "test": data.test_examples.inputs}
        features = {
            name: {part: predict_features(model, x) for part, x in inputs.items()}
            for name, model in h0.items()
        }
        # filled row by row: stacking the rows of many clients would take twice the memory
        count = len(heads)
        scores = {part: torch.empty(count, len(x), device=x.device) for part, x in inputs.items()}
        denoised: dict[int, ReleasedHead] = {}
        for name in h0:
            group = [head for head in heads if self.architectures[head.client] == name]
            denoised |= {head.client: head for head in scoring.shrink_heads(group)}
        for row, head in enumerate(heads):
            own = features[self.architectures[head.client]]
            logits = {part: denoised[head.client].logits(rows) for part, rows in own.items()}
            for part, values in logits.items():
                scores[part][row] = scoring.calibration.scores(values, logits["distill"])
        return scores

    def count_bytes(
        self, scoring: Scoring | None, h0: Mapping[str, State], heads: Sequence[ReleasedHead]
    ) -> tuple[int, int]:
        """The bytes of the preparation, to the server and to the clients (FedAUX, appendix D).

        Clients send scoring heads. They receive h_0, feature maps and, if the scorer uses them,
        features of the negatives.
        """
        needs_negatives = scoring is not None and scoring.scorer.uses_negatives
        num_negatives = len(self.context.data.negative_inputs) if needs_negatives else 0
        up = sum(state_bytes({"weight": head.weight}) for head in heads)
        down = sum(state_bytes(h0[name]) for name in self.architectures if name in h0)
        down += sum(state_bytes(head.public_map.tensors()) for head in heads)
        down += sum(feature_bytes(num_negatives, head.weight.numel()) for head in heads)
        return up, down

    def knn_accuracy(self, h0: nn.Module) -> float:
        """How well h_0 separates the classes of the private data, for the experimenter only.

        It uses the labels of all clients, which a real server does not have.
        """
        data, test = self.context.data, self.context.data.test_examples
        # every process has all data: there is nothing to synchronize
        metric = KNNAccuracy(sync_on_compute=False).to(test.inputs.device)
        for client in range(data.num_clients):
            own = data.client(client)
            metric.update(predict_features(h0, own.inputs), own.targets, query=False)
        metric.update(predict_features(h0, test.inputs), test.targets, query=True)
        return float(metric.compute())

    def _cached(
        self, key: dict[str, str | int], compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Loads a result from the cache, or computes it and stores it there.

        Only the first process reads and writes files, and it broadcasts what it has found. If it
        has found nothing, all processes compute together, and all use the first process's result.
        """
        processes = self.context.processes
        result = processes.broadcast(load_cached(self.cache, key) if processes.first else None)
        if result is None:
            result = processes.broadcast(compute())
            if processes.first:
                save_cached(self.cache, key, result)
        return result


def create_extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with the weights of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()
