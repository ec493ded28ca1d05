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

from torch import Tensor, nn

from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.cache import (
    CacheKey,
    cache_lock,
    has_cached,
    load_cached,
    save_cached,
    tensor_digest,
)
from fedaux_pl.engine import Job, SeedPurpose, isolated_rng, predict_features
from fedaux_pl.errors import PrivacyError
from fedaux_pl.federation.client_pool import ClientPool
from fedaux_pl.federation.context import Context, ServerFeatures
from fedaux_pl.federation.given_h0 import GivenH0, read_h0
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import backbone_state, load_backbone, of_head
from fedaux_pl.models.saved_models import read_safetensors
from fedaux_pl.modules import KNNAccuracy
from fedaux_pl.processes import Processes
from fedaux_pl.scoring import Collected, ReleasedHead, Step, clients_of, pack, unpack

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
    kept: Path | None = None  # the folder of each h_0 that is never learned again; None for none

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
        if self.kept is None:
            return cached()
        return load_or_compute(self.context.processes, self.kept, key, cached)

    def _print_origin(self, architecture: str, model: nn.Module, origin: str) -> None:
        """Say where h_0 is from and, of images, which normalization it reads them with."""
        if self.context.processes.first:
            normalize = getattr(model, "normalize", None)
            constants = "" if normalize is None else f"; images: {normalize.extra_repr()}"
            print_above_bars(f"h_0 of {architecture}: {origin}{constants}")

    def has_h0(self, architecture: str, model: nn.Module) -> bool:
        """Return whether h_0 is given or an earlier run has learned it: it is loaded then."""
        if architecture in self.given:
            return True
        folders = [folder for folder in (self.kept, self.cache) if folder is not None]
        key = self._h0_key(architecture, model)
        return any(has_cached(folder, key) for folder in folders)

    def _h0_key(self, architecture: str, model: nn.Module) -> CacheKey:
        is_shared = self.settings.seed is not None  # by runs with other classes, too
        training = self.settings.plain()
        if "teacher" in training:
            state, about = read_safetensors(Path(training["teacher"]))
            # not its path; before 0.13 teachers saw views
            training["teacher"] = {**about, "weights": tensor_digest(**state), "sees": "photos"}
        return {
            "kind": f"h0-{architecture.replace('/', '_')}",  # part of a file name
            "start": describe_model(self.model_options[architecture], model, head=not is_shared),
            "training": as_text(training),
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
    ) -> Collected:
        """Return a step with the heads of the clients asked; those of sites may be missing.

        The heads that ``asked`` has, such as those of a checkpoint, are used again, and so are
        simulated ones of the cache. With secret noise every run releases anew. Later steps use the
        feature maps of ``first``, the heads of the first step.
        """
        step = asked.step
        heads = list(asked.heads)
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
        if not heads:
            step = pool.settle(step, asked.clients, first)
        maps = {self.context.architectures[head.client]: head.public_map for head in first}

        def ask() -> list[ReleasedHead]:
            known = maps or {
                name: step.scoring.fit_map(features.auxiliary(name), features.negatives(name))
                for name in h0
            }
            return pool.prepare(step, features, known, missing)

        if pool.at_sites:  # one may come later
            heads += ask() if missing else []
            heads.sort(key=lambda head: head.client)
            return replace(asked, step=step, heads=heads)
        if not heads and self.secret_noise:
            heads = ask()
        elif not heads:
            key: CacheKey = {
                "kind": "simulated-heads",
                "release": self._release_key(step, h0),
                "seed": self.context.seed,
            }
            heads = unpack(self._cached(key, lambda: pack(ask())), step)
        heads = [self._checked(head, step) for head in heads]
        return replace(asked, step=step, heads=heads)

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
            "h0": {
                name: describe_model(self.model_options[name], model, head=False)
                for name, model in h0.items()
            },
            "clients": data.client_fingerprints(),
            "classes": len(data.classes),
        }
        if step.scoring.feature_map.uses_auxiliary:
            key["auxiliary"] = data.fingerprints["auxiliary"]
        if step.sends:
            key["sent"] = tensor_digest(*step.scorer.tensors().values())
        if step.scoring.depends_on_negatives:
            key["negatives"] = tensor_digest(data.negative_inputs)
        return as_text(key)

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

    def _cached(self, key: CacheKey, compute: Callable[[], _Tensors]) -> _Tensors:
        processes = self.context.processes
        if self.cache is None:
            return processes.broadcast(compute())
        return load_or_compute(processes, self.cache, key, compute)


def load_or_compute(
    processes: Processes, folder: Path, key: CacheKey, compute: Callable[[], _Tensors]
) -> _Tensors:
    """Load a result from a folder, or compute it and store it there.

    Only the first process takes the lock, reads and writes files, and it broadcasts what it has
    found. If it has found nothing, all processes compute together, and all use the first process's
    result.
    """
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


def describe_model(options: Mapping[str, Any], model: nn.Module, head: bool = True) -> str:
    """Return all that determines a model, or its features: weights, options, layers."""
    state = model.state_dict()
    layers = {name: layer.extra_repr() for name, layer in model.named_modules()}
    if not head:
        state = backbone_state(state)
        layers = {name: text for name, text in layers.items() if not of_head(f"{name}.")}
    text = as_text({"options": options, "layers": layers})
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{tensor_digest(*state.values())} {digest}"


def create_extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with the weights of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()


def as_text(settings: Mapping[str, Any]) -> str:
    """Return settings as the text of keys."""
    return json.dumps(settings, sort_keys=True, default=str)
