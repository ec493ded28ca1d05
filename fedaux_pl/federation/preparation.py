"""The steps of the preparation phase (FedAUX, Algorithm 1), with a cache on disk."""

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.cache import cache_lock, has_cached, load_cached, save_cached, tensor_digest
from fedaux_pl.engine import Job, SeedPurpose, isolated_rng, predict_features
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.context import Context, ServerFeatures
from fedaux_pl.federation.given_h0 import GivenH0, read_h0
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.files import state_folder
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import backbone_state, load_backbone, of_head
from fedaux_pl.models.saved_models import read_safetensors
from fedaux_pl.modules import KNNAccuracy
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Collected, Ledger, PrivacySpent, PublicMap, ReleasedHead, Step
from fedaux_pl.scoring.budget import Budget, ReleaseKey
from fedaux_pl.scoring.release import clients_of
from fedaux_pl.scoring.released_heads import pack, release_once, unpack

_Key = dict[str, str | int]
_Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Preparation:
    """Pre-training and the release of scoring heads."""

    context: Context
    settings: Pretraining
    model_options: Mapping[str, Mapping[str, Any]]  # of each architecture, defaults included
    cache: Path | None  # the folder with the results of earlier runs; None for none
    secret_noise: bool = False  # from the operating system, not from the seed
    given: Mapping[str, GivenH0] = field(default_factory=dict)  # h_0 that was learned elsewhere

    def pretrain(self, architecture: str, model: nn.Module) -> _Tensors:
        """Return the weights of h_0, given or learned from D_aux starting at the model's weights.

        With 0 epochs, h_0 is the model as it is: with weights that came with it, or random ones.
        """
        if architecture in self.given:
            given = self.given[architecture]
            weights, left_out = read_h0(given, model)
            source = "memory" if isinstance(given, Mapping | nn.Module) else given
            text = f"read from {source}, not learned"
            if left_out:
                text += f"; its head is left out ({', '.join(left_out)})"
            self._print_origin(architecture, model, text)
            return weights
        if self.settings.epochs == 0:
            self._print_origin(architecture, model, f"not learned, {model.origin}")
            return {k: v.cpu().clone() for k, v in backbone_state(model.state_dict()).items()}
        key = self._h0_key(architecture, model)
        cached = partial(self._cached, key, lambda: self._pretrain(architecture, model))
        return self._first_result(key, cached) if self.secret_noise else cached()

    def _print_origin(self, architecture: str, model: nn.Module, origin: str) -> None:
        """Say where h_0 is from and, of images, which normalization it reads them with."""
        if self.context.processes.first:
            normalize = getattr(model, "normalize", None)
            constants = "" if normalize is None else f"; images: {normalize.extra_repr()}"
            print_above_bars(f"h_0 of {architecture}: {origin}{constants}")

    def has_h0(self, architecture: str, model: nn.Module) -> bool:
        """Return whether h_0 is given or an earlier run has learned it: it is loaded then."""
        folder = state_folder() / "h0" if self.secret_noise else self.cache
        if architecture in self.given:
            return True
        return folder is not None and has_cached(folder, self._h0_key(architecture, model))

    def _h0_key(self, architecture: str, model: nn.Module) -> _Key:
        is_shared = self.settings.seed is not None  # by runs with other classes, too
        training = self.settings.plain()
        if "teacher" in training:
            state, about = read_safetensors(Path(training["teacher"]))
            # not its path; before 0.13 teachers saw views
            training["teacher"] = {**about, "weights": tensor_digest(**state), "sees": "photos"}
        return {
            "kind": f"h0-{architecture.replace('/', '_')}",  # part of a file name
            "start": self._describe(architecture, model, head=not is_shared),
            "training": _as_text(training),
            "precision": str(self.context.runner.trainer.precision),
            "data": self.context.data.fingerprints["auxiliary"],
            "seed": self._seed,
        }

    @property
    def _seed(self) -> int:
        return self.context.seed if self.settings.seed is None else self.settings.seed

    def _pretrain(self, architecture: str, model: nn.Module) -> _Tensors:
        epochs = self.settings.epochs
        seed = derive_seed(self._seed, SeedPurpose.PRETRAINING)
        # the module draws random weights: SimCLR's projection head
        with isolated_rng(derive_seed(self._seed, SeedPurpose.PRETRAINING, 0)):
            module = self.settings.create_module(copy.deepcopy(model))
        # On the CPU each process computes whole batches, so that h_0 is the same in any number of
        # processes: sums over parts round differently, and Adam turns tiny differences
        # of gradients near 0 into steps of size lr.
        processes = self.context.processes
        runner = self.context.runner
        module.share_batches(Processes() if processes.device.type == "cpu" else processes)
        data = self.context.data
        targets = None
        if self.settings.teacher is not None:
            runner.adopt(module)
            with runner.preparing(f"preparing {architecture}: features of the teacher"):
                targets = module.targets(data.auxiliary_inputs)
        batches = data.pretrain_batches(self.settings.batch_size, seed=seed, targets=targets)
        epoch_numbers = itertools.count(1)
        trainer = runner.trainer
        with self.context.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:

            def on_epoch(loss: float) -> None:
                stage.update(1, loss=loss)
                epoch = next(epoch_numbers)
                federation = cast(RunView, trainer.lightning_module)
                for callback in federation_callbacks(trainer):
                    callback.on_pretraining_epoch(trainer, federation, architecture, epoch, loss)

            lr = None
            if self.settings.is_scheduled:
                lr = partial(self.settings.lr_at, total=epochs * len(batches))
            runner.run_all(module, [Job(batches, epochs, seed, lr=lr)], on_epoch)
        runner.forget(module)
        return {key: tensor.cpu() for key, tensor in module.backbone_state().items()}

    def release_heads(
        self,
        pool: ClientPool,
        asked: Collected,
        features: ServerFeatures,
        first: Sequence[ReleasedHead] = (),
    ) -> tuple[Collected, PrivacySpent | None]:
        """Return a step with the heads of the clients asked, and the total cost in the ledger.

        There is no cost without secret noise and with real sites, of which heads may be missing.
        Earlier heads of the same settings and data, or those that ``asked`` has, are used again:
        a second release would cost privacy again. Those with secret noise are in the ledger of the
        machine, simulated ones in the cache. Later steps use the feature maps of ``first``, the
        heads of the first step.
        """
        step = asked.step
        restored = asked.heads
        missing = self.missing(asked)
        data = self.context.data
        h0 = features.h0
        if data.shared_rows and self.secret_noise:
            raise PrivacyError(
                f"{data.shared_rows} auxiliary samples are private training samples too, so h_0 "
                "and the feature map depend on private data: remove them from the auxiliary data"
            )
        if step.summed and self.secret_noise and not pool.at_sites:
            raise PrivacyError(
                "privacy.secure is set and privacy.secret true, but the clients run in one "
                "process, which sees all of them: set privacy.secret to false for a simulation, "
                "privacy.secure to null, or run real sites"
            )
        if step.sends and self.secret_noise and not restored:
            step = self._first_sent(asked, first)
        maps = {self.context.architectures[head.client]: head.public_map for head in first}

        def ask() -> list[ReleasedHead]:
            fit = self._first_map if self.secret_noise and pool.at_sites else self._fit_map
            known = maps or {name: fit(step, features, name) for name in h0}
            return pool.prepare(step, features, known, missing)

        if pool.at_sites:  # they have ledgers of their own, and one may come later
            heads = [*restored, *(ask() if missing else [])]
            heads.sort(key=lambda head: head.client)
            return replace(asked, step=step, heads=heads), None
        total = None
        key = self._release_key(step, h0)
        if self.secret_noise:
            processes = self.context.processes
            recorded = asked.clients if processes.first else ()  # only the first uses the ledger
            digests = {client: data.record_digests(client) for client in recorded}
            delta = step.scoring.privacy.delta
            budget = Budget(Ledger(data.key_id), digests, delta, processes=processes)
            heads, total = release_once(budget, ReleaseKey(key), step, ask, restored=restored)
        else:
            cache_key: _Key = {"kind": "simulated-heads", "release": key, "seed": self.context.seed}
            heads = list(restored) or unpack(self._cached(cache_key, lambda: pack(ask())), step)
        heads = [self._checked(head, step) for head in heads]
        return replace(asked, step=step, heads=heads), total

    def _checked(self, head: ReleasedHead, step: Step) -> ReleasedHead:
        data = self.context.data
        size = data.client_sizes[head.client]
        name = data.client_names[head.client]
        step.check_release(head, size, len(data.negative_inputs), name)
        if not data.shared_rows:
            return head
        flaw = f"{data.shared_rows} auxiliary samples are private training samples too"
        flaw = "; ".join(filter(None, [head.release.flaw, flaw]))
        return replace(head, release=replace(head.release, flaw=flaw))

    def _first_sent(self, asked: Collected, first: Sequence[ReleasedHead]) -> Step:
        """Return what this machine has first sent in it: rounded anew, it is a new release."""
        # the noise of these heads is in no other release
        heads = [head.weight for head in first if not {*asked.clients}.isdisjoint(head.clients)]
        key: _Key = {
            "kind": "sent",
            "heads": tensor_digest(*heads),
            "release": _as_text(asked.step.settings()),
        }
        return asked.step.with_sent(self._first_result(key, asked.step.scorer.tensors))

    def missing(self, asked: Collected) -> list[int]:
        """Return the clients without a release; nobody joins a secure sum that is there."""
        names = self.context.architectures
        known = set(clients_of(asked.heads))
        if asked.step.summed:
            summed = {names[head.client] for head in asked.heads}
            known |= {client for client in asked.clients if names[client] in summed}
        return [client for client in asked.clients if client not in known]

    def _release_key(self, step: Step, h0: Mapping[str, nn.Module]) -> str:
        """Return all that determines a release but its noise, as text.

        It has the records of each client and what maps them to rows, not how they were split.
        """
        data = self.context.data
        key = {
            "scoring": step.settings(),
            "architectures": self.context.architectures,
            "h0": {name: self._describe(name, model, head=False) for name, model in h0.items()},
            "clients": data.client_fingerprints(),
            "classes": len(data.classes),
        }
        if step.scoring.feature_map.uses_auxiliary:
            key["auxiliary"] = data.fingerprints["auxiliary"]
        if step.sends:
            key["sent"] = tensor_digest(*step.scorer.tensors().values())
        if step.scoring.depends_on_negatives:
            key["negatives"] = tensor_digest(data.negative_inputs)
        return _as_text(key)

    def _describe(self, architecture: str, model: nn.Module, head: bool = True) -> str:
        """Return all that determines a model, or its features: weights, options, layers."""
        state = model.state_dict()
        layers = {name: layer.extra_repr() for name, layer in model.named_modules()}
        if not head:
            state = backbone_state(state)
            layers = {name: text for name, text in layers.items() if not of_head(f"{name}.")}
        text = _as_text({"options": self.model_options[architecture], "layers": layers})
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{tensor_digest(*state.values())} {digest}"

    def _fit_map(self, step: Step, features: ServerFeatures, name: str) -> PublicMap:
        """Return an architecture's public map."""
        return step.scoring.fit_map(features.auxiliary(name), features.negatives(name))

    def _first_map(self, step: Step, features: ServerFeatures, name: str) -> PublicMap:
        """Return an architecture's public map as sites get it with secret noise.

        It is the map of this machine's first run, with the features of D^-, which ``features`` then
        has: others would be a new release.
        """
        settings = step.settings()
        needs_negatives = step.scorer.uses_negatives

        def fit() -> _Tensors:
            fitted = self._fit_map(step, features, name)
            tensors = fitted.tensors() | {"bound": torch.tensor(fitted.bound, dtype=torch.float64)}
            if needs_negatives:
                tensors["negatives"] = features.negatives(name).cpu()
            return tensors

        key: _Key = {
            "kind": f"map-{name.replace('/', '_')}",
            "h0": self._describe(name, features.h0[name], head=False),
            "map": _as_text({name: settings[name] for name in ("feature_map", "norm_bound")}),
            "data": self.context.data.fingerprints["auxiliary"],
            "rows": tensor_digest(self.context.data.auxiliary_rows["negatives"]),
            "negatives": int(needs_negatives),
        }
        kept = self._first_result(key, fit)
        if needs_negatives:
            features.sent_negatives[name] = kept.pop("negatives")
        bound = float(kept.pop("bound"))
        return PublicMap(**kept, unit=step.scoring.norm_bound == "unit", bound=bound)

    def knn_accuracy(self, h0: nn.Module) -> float:
        """Return how well h_0 separates the private classes, for the experimenter only.

        It uses the labels of all clients, which a real server does not have.
        """
        data = self.context.data
        test = data.evaluation_examples
        # every process has all data: there is nothing to synchronize
        metric = KNNAccuracy(sync_on_compute=False).to(test.inputs.device)
        for client in range(data.num_clients):
            examples = data.client(client)
            metric.update(predict_features(h0, examples.inputs), examples.targets, query=False)
        metric.update(predict_features(h0, test.inputs), test.targets, query=True)
        return float(metric.compute())

    def _first_result(self, key: _Key, compute: Callable[[], _Tensors]) -> _Tensors:
        """Return this machine's first result with this key, which the state folder keeps forever.

        Other threads or another device round a result differently, and a release in other features
        is another release: with secret noise it would cost privacy again.
        """
        return self._load_or_compute(state_folder() / "h0", key, compute)  # and maps

    def _cached(self, key: _Key, compute: Callable[[], _Tensors]) -> _Tensors:
        if self.cache is None:
            return self.context.processes.broadcast(compute())
        return self._load_or_compute(self.cache, key, compute)

    def _load_or_compute(
        self, folder: Path, key: _Key, compute: Callable[[], _Tensors]
    ) -> _Tensors:
        """Load a result from a folder, or compute it and store it there.

        Only the first process takes the lock, reads and writes files, and it broadcasts what it has
        found. If it has found nothing, all processes compute together, and all use the first
        process's result.
        """
        processes = self.context.processes
        with ExitStack() as stack:
            if processes.first:
                # keep-alive, so that collective calls of the others do not time out
                keep_alive = partial(processes.broadcast, True)
                stack.enter_context(cache_lock(folder, key, on_wait=keep_alive))
            # the others get True from each keep-alive, False once the first has the lock
            while processes.broadcast(False):
                pass
            result = processes.broadcast(load_cached(folder, key) if processes.first else None)
            if result is None:
                result = processes.broadcast(compute())
                if processes.first:
                    save_cached(folder, key, result)
        return result


def create_extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with the weights of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()


def _as_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
