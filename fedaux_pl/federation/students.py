"""The server's models under Lightning: what a federation needs around Algorithms 1 and 2."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.callbacks.hooks import FederationCallback
from fedaux_pl.data import FederatedDataModule
from fedaux_pl.engine import SeedPurpose, evaluating, isolated_rng
from fedaux_pl.engine.inference import BatchNormStatistics
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import create_for, options_of
from fedaux_pl.modules.state_dicts import copy_state

_ENSEMBLE = "ensemble"
_Module = TypeVar("_Module", bound=pl.LightningModule)


class Students(pl.LightningModule):
    """One model of each architecture, evaluated alone and as an ensemble.

    Validation and test batches are (inputs, labels).

    Args:
        batchnorm: The BatchNorm statistics of the evaluation.

    Attributes:
        students: The models; empty until ``create_students``.
        accuracies: The accuracy of each student and of their ensemble.
    """

    def __init__(self, batchnorm: BatchNormStatistics) -> None:
        super().__init__()
        self.batchnorm: BatchNormStatistics = batchnorm
        self.students = nn.ModuleDict()
        self.accuracies = nn.ModuleDict()

    @property
    def data(self) -> FederatedDataModule:
        """The Trainer's data module; raises a ConfigurationError if it is not a federated one."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, FederatedDataModule):
            raise ConfigurationError(
                "a federation needs data that are split over clients: give the Trainer a "
                "FederatedDataModule as datamodule"
            )
        return data

    def create_students(
        self, architectures: Sequence[str], options: Mapping[str, Any], pretrained: bool, seed: int
    ) -> None:
        """Creates the models for the inputs and the classes of the data.

        Args:
            architectures: Their names.
            options: Further arguments of ``create_model``, see ``Federation``.
            pretrained: Whether models start from weights that come with them, if there are any.
            seed: The seed of the run.
        """
        num_classes = len(self.data.classes)
        for number, name in enumerate(architectures):
            own = options_of(name, architectures, options)
            with isolated_rng(derive_seed(seed, SeedPurpose.INITIALIZATION, number)):
                self.students[name] = create_for(
                    self.data.input_shape, name, num_classes, pretrained=pretrained, **own
                )
            self.data.check_model(self.students[name])
        for name in (*architectures, _ENSEMBLE):
            # every process evaluates all test data: there is nothing to synchronize
            self.accuracies[name] = MulticlassAccuracy(
                num_classes, average="micro", sync_on_compute=False
            )

    def create_modules(
        self, module_type: Callable[..., _Module], settings: TrainingSettings, **options: Any
    ) -> dict[str, _Module]:
        """Creates a module for each architecture, which trains a copy of the student.

        Args:
            module_type: The class of the modules, such as ClientModule.
            settings: Which optimizer trains.
            **options: Further arguments of the modules.
        """
        options = {**settings.optimizer_options, **options}
        return {
            name: module_type(copy.deepcopy(student), len(self.data.classes), **options).to(
                self.trainer.strategy.root_device
            )
            for name, student in self.students.items()
        }

    @contextmanager
    def rollback_on_error(self, *states: dict[Any, Any]) -> Iterator[list[dict[Any, Any]]]:
        """Restores the students and the given dicts if the block raises.

        Args:
            *states: Dicts that are restored in place. Inside the block their values may be
                replaced, but not modified.

        Yields:
            Copies of the students' weights and of the dicts.
        """
        weights = copy_state(self.students)
        copies = [dict(state) for state in states]
        try:
            yield [weights, *copies]
        except BaseException:
            for state, entries in zip(states, copies, strict=True):
                state.clear()
                state.update(entries)
            self.students.load_state_dict(weights)
            raise

    def count_step(self) -> None:
        """Advances ``global_step`` after a round; otherwise Lightning would write no checkpoint."""
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def federation_callbacks(self) -> list[FederationCallback]:
        """The Trainer's callbacks that have hooks of a federation."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        return [callback for callback in callbacks if isinstance(callback, FederationCallback)]

    def forward(self, x: Tensor) -> Tensor:
        """Class probabilities of the ensemble of all students, shape (N, C)."""
        logits = [model(x).float() for model in self.students.values()]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """The accuracy of each student and of their ensemble."""
        x, labels = batch[0], batch[1]
        logits = {}
        for name, model in self.students.items():
            with evaluating(model, self.batchnorm):
                logits[name] = model(x).float()
        if bool(torch.stack([values.isnan().any() for values in logits.values()]).any()):
            raise FloatingPointError(
                "the students' predictions hold NaN after this round: lower distillation.lr "
                "(--model.distillation.lr), or local.lr in a method without distillation"
            )
        logits[_ENSEMBLE] = torch.stack(list(logits.values())).mean(dim=0)
        for name, values in logits.items():
            metric = cast(MulticlassAccuracy, self.accuracies[name])
            metric.update(values, labels)
            self.log(_key(name), metric, logger=False, on_step=False, on_epoch=True)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """The accuracy of each student and of their ensemble."""
        self.validation_step(batch, batch_idx)

    def compute_accuracies(self) -> dict[str, float]:
        """The accuracies by the names that they have in logs, after all batches."""
        return {
            _key(name): float(cast(MulticlassAccuracy, metric).compute())
            for name, metric in self.accuracies.items()
        }


def _key(name: str) -> str:
    return "accuracy" if name == _ENSEMBLE else f"accuracy/{name}"
