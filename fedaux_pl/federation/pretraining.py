"""h_0: given, found in the cache, or learned from D_aux (FedAUX, Algorithm 1)."""

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from fedaux_pl.callbacks.hooks import federation_callbacks
from fedaux_pl.callbacks.progress import print_above_bars
from fedaux_pl.callbacks.report import cache_folder
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.data.cache import CacheKey, has_cached, tensor_digest
from fedaux_pl.engine import Job, SeedPurpose, isolated_rng, predict_features
from fedaux_pl.federation.cache import as_text, describe_model, load_or_compute
from fedaux_pl.federation.given_h0 import GivenH0, read_h0
from fedaux_pl.federation.run import Run
from fedaux_pl.federation.settings import Pretraining
from fedaux_pl.federation.students import Students
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import backbone_state, load_backbone
from fedaux_pl.models.saved_models import read_safetensors
from fedaux_pl.modules import KNNAccuracy
from fedaux_pl.processes import Processes


@dataclass(frozen=True)
class H0Source:
    """Where h_0 of each architecture comes from.

    Attributes:
        run: What all parts of the run work with.
        settings: How h_0 is learned.
        model_options: The options of each architecture, defaults included.
        cache: The folder with the results of earlier runs; None for none.
        given: An h_0 of each architecture that was learned elsewhere; empty if h_0 is learned.
        kept: A folder of h_0 that is never learned again, even if the cache is emptied; None for
            none.
    """

    run: Run
    settings: Pretraining
    model_options: Mapping[str, Mapping[str, Any]]
    cache: Path | None = None
    given: Mapping[str, GivenH0] = field(default_factory=dict)
    kept: Path | None = None

    def h0(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
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
        key = self._key(architecture, model)
        processes = self.run.processes

        def cached() -> dict[str, Tensor]:
            return load_or_compute(
                processes, self.cache, key, lambda: self._learn(architecture, model)
            )

        if self.kept is None:
            return cached()
        return load_or_compute(processes, self.kept, key, cached)

    def has_h0(self, architecture: str, model: nn.Module) -> bool:
        """Return whether h_0 is given, or an earlier run has learned it."""
        if architecture in self.given:
            return True
        folders = [folder for folder in (self.kept, self.cache) if folder is not None]
        key = self._key(architecture, model)
        return any(has_cached(folder, key) for folder in folders)

    def _print_origin(self, architecture: str, model: nn.Module, origin: str) -> None:
        """Say where h_0 is from and, for images, how it normalizes them."""
        if self.run.processes.first:
            normalize = getattr(model, "normalize", None)
            constants = "" if normalize is None else f"; images: {normalize.extra_repr()}"
            print_above_bars(f"h_0 of {architecture}: {origin}{constants}")

    def _key(self, architecture: str, model: nn.Module) -> CacheKey:
        is_shared = self.settings.seed is not None  # by runs with other classes, too
        training = self.settings.plain()
        if "teacher" in training:
            state, about = read_safetensors(Path(training["teacher"]))
            # the weights instead of their path; before 0.13 teachers saw views
            training["teacher"] = {**about, "weights": tensor_digest(**state), "sees": "photos"}
        return {
            "kind": f"h0-{architecture.replace('/', '_')}",  # part of a file name
            "start": describe_model(self.model_options[architecture], model, head=not is_shared),
            "training": as_text(training),
            "precision": str(self.run.runner.trainer.precision),
            "data": self.run.data.fingerprints["auxiliary"],
            "seed": self._seed,
        }

    @property
    def _seed(self) -> int:
        return self.run.seed if self.settings.seed is None else self.settings.seed

    def _learn(self, architecture: str, model: nn.Module) -> dict[str, Tensor]:
        epochs = self.settings.epochs
        seed = derive_seed(self._seed, SeedPurpose.PRETRAINING)
        # the module draws random weights: SimCLR's projection head
        with isolated_rng(derive_seed(self._seed, SeedPurpose.PRETRAINING, 0)):
            module = self.settings.create_module(copy.deepcopy(model))
        # On the CPU each process computes whole batches, so that h_0 is the same in any number of
        # processes: sums over parts round differently, and Adam turns tiny differences
        # of gradients near 0 into steps of size lr.
        processes = self.run.processes
        runner = self.run.runner
        module.share_batches(Processes() if processes.device.type == "cpu" else processes)
        data = self.run.data
        targets = None
        if self.settings.teacher is not None:
            runner.adopt(module)
            with runner.preparing(f"preparing {architecture}: features of the teacher"):
                targets = module.targets(data.auxiliary_inputs)
        batches = data.pretrain_batches(self.settings.batch_size, seed=seed, targets=targets)
        epoch_numbers = itertools.count(1)
        trainer = runner.trainer
        with self.run.progress.stage(f"pre-training {architecture}", epochs, "epoch") as stage:

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


def create_h0_source(
    run: Run,
    students: Students,
    settings: Pretraining,
    given: Mapping[str, GivenH0],
    kept: Path | None,
) -> H0Source:
    """Create the source of h_0 for the students as they are before the run.

    In a trial (``fast_dev_run``) h_0 is learned in one epoch at most, and nothing is stored.
    """
    if run.is_trial:
        settings = replace(settings, epochs=min(1, settings.epochs))
    cache = None if run.is_trial else cache_folder(run.runner.trainer)
    options = students.complete_options()
    return H0Source(run, settings, options, cache, given, kept)


def create_extractor(model: nn.Module, h0: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with the weights of h_0, in evaluation mode."""
    model = copy.deepcopy(model)
    load_backbone(model, h0)
    return model.eval()


def knn_accuracy(run: Run, h0: nn.Module) -> float:
    """Return how well h_0 separates the private classes, for the experimenter only.

    It uses the labels of all clients, which a real server does not have.
    """
    data = run.data
    test = data.evaluation_examples
    # every process has all data: there is nothing to synchronize
    metric = KNNAccuracy(sync_on_compute=False).to(test.inputs.device)
    for client in range(data.num_clients):
        examples = data.client(client)
        metric.update(predict_features(h0, examples.inputs), examples.targets, query=False)
    metric.update(predict_features(h0, test.inputs), test.targets, query=True)
    return float(metric.compute())
