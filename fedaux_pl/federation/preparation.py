"""The steps of the preparation phase (FedAUX, Algorithm 1), with a cache on disk."""

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.data.cache import cache_lock, load_cached, save_cached, tensor_digest
from fedaux_pl.engine.inference import predict_features
from fedaux_pl.engine.seeds import SeedPurpose, isolated_rng
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation.clients import ClientPool
from fedaux_pl.federation.context import Context
from fedaux_pl.federation.server_features import ServerFeatures
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.files import state_folder
from fedaux_pl.functional.averaging import State
from fedaux_pl.functional.communication import feature_bytes, state_bytes
from fedaux_pl.models import load_backbone, of_head
from fedaux_pl.modules import KNNAccuracy
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Ledger, PrivacySpent, PublicMap, ReleasedHead, Scoring
from fedaux_pl.scoring.records import pack, unpack
from fedaux_pl.scoring.release_once import release_once


@dataclass(frozen=True)
class Preparation:
    """Pre-training, the release of scoring heads, and scores.

    Attributes:
        context: The data and the tools of the run.
        settings: How h_0 is learned.
        architectures: The architecture of each client.
        model_options: The options of each architecture, defaults included.
        cache: The folder with the results of earlier runs; None to neither read nor write any.
        secret_noise: Whether the noise comes from the operating system, not from the seed.
    """

    context: Context
    settings: Pretraining
    architectures: Sequence[str]
    model_options: Mapping[str, Mapping[str, Any]]
    cache: Path | None
    secret_noise: bool = False

    def pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        """The weights of h_0, learned from D_aux starting at the model's weights.

        With 0 epochs, h_0 is the model as it is: with weights that came with it, or random ones.
        """
        if self.settings.epochs == 0:
            return {k: v.cpu().clone() for k, v in model.state_dict().items() if not of_head(k)}
        key: dict[str, str | int] = {
            "kind": f"h0-{architecture.replace('/', '_')}",  # part of a file name
            "start": self._describe(architecture, model),
            "training": _as_text(self.settings.plain()),
            "precision": str(self.context.runner.trainer.precision),
            "data": self.context.data.fingerprints["auxiliary"],
            "seed": self.context.seed,
        }

        def learn() -> dict[str, Tensor]:
            return self._cached(key, lambda: self._pretrain(architecture, model))

        return self._kept(key, learn) if self.secret_noise else learn()

    def _pretrain(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        epochs = self.settings.epochs
        seed = self.context.derive_seed(SeedPurpose.PRETRAINING)
        with isolated_rng(self.context.derive_seed(SeedPurpose.PRETRAINING, 0)):
            # the parameters of the loss are random
            module = self.settings.create_module(copy.deepcopy(model))
        # On the CPU each process computes whole batches, so that h_0 is the same in any number of
        # processes: sums over parts round differently, and Adam makes steps of lr from that.
        processes = self.context.processes
        module.share_batches(Processes() if processes.device.type == "cpu" else processes)
        batches = self.context.data.pretrain_batches(self.settings.batch_size, seed=seed)
        with self.context.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:
            numbers = itertools.count(1)

            def on_epoch(loss: float) -> None:
                stage.update(1, loss=loss)
                self._report_epoch(architecture, next(numbers), loss)

            self.context.runner.run(module, batches, epochs, seed, on_epoch=on_epoch)
        self.context.runner.forget(module)
        return {key: tensor.cpu() for key, tensor in module.backbone_state().items()}

    def _report_epoch(self, architecture: str, epoch: int, loss: float) -> None:
        trainer = self.context.runner.trainer
        for callback in federation_callbacks(trainer):
            callback.on_pretraining_epoch(
                trainer, trainer.lightning_module, architecture, epoch, loss
            )

    def release_heads(
        self,
        pool: ClientPool,
        scoring: Scoring,
        features: ServerFeatures,
        restored: Sequence[ReleasedHead] = (),
    ) -> tuple[list[ReleasedHead], PrivacySpent | None]:
        """The scoring heads of all clients, ordered by id, and with secret noise their total cost.

        Earlier heads of the same settings and data are used again: a second release would cost
        privacy again. Those with secret noise are in the ledger of the machine, simulated ones in
        the cache.

        Args:
            pool: The clients.
            scoring: What they release.
            features: h_0 of each architecture, and its features of public data.
            restored: The heads of a checkpoint.
        """
        data, h0 = self.context.data, features.h0
        if data.shared_rows and self.secret_noise:
            raise PrivacyError(
                f"{data.shared_rows} auxiliary samples are private training samples too, so h_0 "
                "and the feature map depend on private data: remove them from the auxiliary data"
            )

        known = {head.client for head in restored}
        missing = [client for client in range(len(self.architectures)) if client not in known]

        def ask() -> list[ReleasedHead]:
            maps = {name: self._public_map(scoring, features, name) for name in h0}
            return pool.prepare(scoring, features, maps, self.secret_noise, missing)

        if data.holds == "public":  # sites have ledgers of their own, and one may come later
            heads = [*restored, *(ask() if missing else [])]
            return sorted(heads, key=lambda head: head.client), None
        total = None
        key = self._release_key(scoring, h0)
        if self.secret_noise:
            processes = self.context.processes
            clients = range(data.num_clients) if processes.first else ()
            heads, total = release_once(
                Ledger(data.key_id),
                [key, self._former_key(scoring, h0)],
                {client: data.record_digests(client) for client in clients},
                scoring,
                ask,
                restored=restored,
                processes=processes,
            )
        else:
            own: dict[str, str | int] = {
                "kind": "simulated-heads",
                "release": key,
                "seed": self.context.seed,
            }
            heads = list(restored) or unpack(self._cached(own, lambda: pack(ask())), scoring)
        for head in heads:
            size, name = data.client_sizes[head.client], data.client_names[head.client]
            scoring.check_release(head, size, len(data.negative_inputs), name)
        if data.shared_rows:
            flaw = f"{data.shared_rows} auxiliary samples are private training samples too"
            heads = [replace(h, release=replace(h.release, flaw=flaw)) for h in heads]
        return heads, total

    def _release_key(self, scoring: Scoring, h0: Mapping[str, nn.Module]) -> str:
        """All that determines a release but its noise, as text.

        These are the records of each client, and what maps them to features and rows. How records
        were assigned to clients, heads of students and test data are no part of it.
        """
        data = self.context.data
        key = {
            "scoring": scoring.release_settings(),
            "architectures": list(self.architectures),
            "h0": {name: self._describe(name, model, head=False) for name, model in h0.items()},
            "clients": data.client_fingerprints(),
            "classes": len(data.classes),
        }
        if scoring.feature_map.uses_auxiliary:
            key["auxiliary"] = data.fingerprints["auxiliary"]
        if scoring.uses_negatives:
            key["negatives"] = tensor_digest(data.negative_inputs)
        return _as_text(key)

    def _former_key(self, scoring: Scoring, h0: Mapping[str, nn.Module]) -> str:
        """The key of the release in ledgers that version 0.6.0 and earlier ones wrote."""
        key = {
            "scoring": scoring.release_settings(),
            "architectures": list(self.architectures),
            "h0": {name: self._describe(name, model) for name, model in h0.items()},
            "data": self.context.data.release_settings(),
        }
        return _as_text(key)

    def _describe(self, architecture: str, model: nn.Module, head: bool = True) -> str:
        """All that determines the features of a model: weights, options, settings of its layers.

        Args:
            architecture: Its name.
            model: The model.
            head: Whether to include its head, which changes no features.
        """
        state = model.state_dict()
        layers = {name: layer.extra_repr() for name, layer in model.named_modules()}
        if not head:
            state = {name: tensor for name, tensor in state.items() if not of_head(name)}
            layers = {name: text for name, text in layers.items() if not of_head(f"{name}.")}
        text = _as_text({"options": self.model_options[architecture], "layers": layers})
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{tensor_digest(*state.values())} {digest}"

    def _public_map(self, scoring: Scoring, features: ServerFeatures, name: str) -> PublicMap:
        """The map of an architecture; sites get the same one, and the same h_0(x), in every run."""
        if not self.secret_noise or self.context.data.holds != "public":
            return _fit_map(scoring, features, name)

        def fit() -> dict[str, Tensor]:
            fitted = _fit_map(scoring, features, name)
            bound = {"bound": torch.tensor(fitted.bound, dtype=torch.float64)}
            sent = {"negatives": features.negatives(name).cpu()} if needs_negatives else {}
            return fitted.tensors() | bound | sent

        settings, needs_negatives = scoring.release_settings(), scoring.scorer.uses_negatives
        key: dict[str, str | int] = {
            "kind": f"map-{name.replace('/', '_')}",
            "h0": self._describe(name, features.h0[name], head=False),
            "map": _as_text({part: settings[part] for part in ("feature_map", "norm_bound")}),
            "data": self.context.data.fingerprints["auxiliary"],
            "rows": tensor_digest(self.context.data.auxiliary_rows["negatives"]),
            "negatives": int(needs_negatives),
        }
        kept = self._kept(key, fit)
        if needs_negatives:
            features.sent_negatives[name] = kept.pop("negatives")
        bound = float(kept.pop("bound"))
        return PublicMap(**kept, unit=scoring.norm_bound == "unit", bound=bound)

    def score(
        self, scoring: Scoring, heads: Sequence[ReleasedHead], features: ServerFeatures
    ) -> dict[str, Tensor]:
        """s_i(x) of every client on D_distill and on the evaluated data, shapes (n, N).

        Both are calibrated on D_distill.
        """
        data = self.context.data
        inputs = {"distill": data.distill_inputs, "evaluation": data.evaluation_examples.inputs}
        parts = {name: features.parts(name) for name in features.h0}
        # filled row by row: stacking the rows of many clients would take twice the memory
        count = len(self.architectures)  # 0 for those that have released nothing
        scores = {part: torch.zeros(count, len(x), device=x.device) for part, x in inputs.items()}
        denoised: dict[int, ReleasedHead] = {}
        for name in parts:
            group = [head for head in heads if self.architectures[head.client] == name]
            denoised |= {head.client: head for head in scoring.shrink_heads(group)}
        for head in heads:
            own = parts[self.architectures[head.client]]
            logits = {part: denoised[head.client].logits(rows) for part, rows in own.items()}
            for part, values in logits.items():
                scores[part][head.client] = scoring.calibration.scores(values, logits["distill"])
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
        if scoring is not None:
            classes = len(self.context.data.classes)
            lengths = (scoring.scorer.row_length(head.weight, classes) for head in heads)
            down += sum(feature_bytes(num_negatives, length) for length in lengths)
        return up, down

    def knn_accuracy(self, h0: nn.Module) -> float:
        """How well h_0 separates the classes of the private data, for the experimenter only.

        It uses the labels of all clients, which a real server does not have.
        """
        data, test = self.context.data, self.context.data.evaluation_examples
        # every process has all data: there is nothing to synchronize
        metric = KNNAccuracy(sync_on_compute=False).to(test.inputs.device)
        for client in range(data.num_clients):
            own = data.client(client)
            metric.update(predict_features(h0, own.inputs), own.targets, query=False)
        metric.update(predict_features(h0, test.inputs), test.targets, query=True)
        return float(metric.compute())

    def _kept(
        self, key: dict[str, str | int], compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The first result with this key on this machine, which the state folder keeps for ever.

        Other threads or another device round a result differently, and a release in other features
        is another release: with secret noise it would cost privacy again.
        """
        return self._stored(state_folder() / "h0", key, compute)

    def _cached(
        self, key: dict[str, str | int], compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        if self.cache is None:
            return self.context.processes.broadcast(compute())
        return self._stored(self.cache, key, compute)

    def _stored(
        self, folder: Path, key: dict[str, str | int], compute: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Loads a result from a folder, or computes it and stores it there.

        Only the first process takes the lock, reads and writes files, and it broadcasts what it has
        found. If it has found nothing, all processes compute together, and all use the first
        process's result.
        """
        processes = self.context.processes
        with ExitStack() as stack:
            if processes.first:
                # collective calls fail after a while: the others hear that the first still waits
                stack.enter_context(
                    cache_lock(folder, key, on_wait=lambda: processes.broadcast(True))
                )
            while processes.broadcast(False):
                pass
            result = processes.broadcast(load_cached(folder, key) if processes.first else None)
            if result is None:
                result = processes.broadcast(compute())
                if processes.first:
                    save_cached(folder, key, result)
        return result


def _fit_map(scoring: Scoring, features: ServerFeatures, architecture: str) -> PublicMap:
    negatives = features.negatives(architecture)
    if not scoring.feature_map.uses_auxiliary:
        return scoring.fit_map(negatives, negatives)
    return scoring.fit_map(features.auxiliary(architecture), negatives)


def create_extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with the weights of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()


def _as_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
