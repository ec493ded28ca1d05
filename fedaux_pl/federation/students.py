"""The server's models under Lightning: what a federation needs around Algorithms 1 and 2."""

import copy
import warnings
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine import SeedPurpose, evaluating, isolated_rng
from fedaux_pl.engine.inference import BatchNormStatistics
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.evaluation_metrics import ACCURACY, EvaluationMetrics, MetricOptions
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import create_for, options_of, state_key
from fedaux_pl.modules.batch_checks import first_entry

_ENSEMBLE = "ensemble"
_LOSSES = ("client_loss/mean", "distillation_loss/")  # what callbacks may monitor, as accuracies
MAX_CLASSES = 20
"""With more classes there is no metric of each class's accuracy; the confusion matrix has them."""
_Module = TypeVar("_Module", bound=pl.LightningModule)


class ModulesByName(nn.ModuleDict):
    """A ModuleDict whose keys may have dots, as class paths do; its state dict has colons there."""

    def __getitem__(self, name: str) -> nn.Module:
        return super().__getitem__(state_key(name))

    def __setitem__(self, name: str, module: nn.Module) -> None:
        super().__setitem__(state_key(name), module)

    def __contains__(self, name: str) -> bool:
        return super().__contains__(state_key(name))

    def __iter__(self) -> Iterator[str]:
        return (key.replace(":", ".") for key in self._modules)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return dict(self.items()).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """Return the names with their modules."""
        return dict(zip(self, self.values(), strict=True)).items()


class Students(pl.LightningModule):
    """One model of each architecture, evaluated alone and as an ensemble.

    Validation and test batches are (inputs, labels). ``accuracy`` is the accuracy of the ensemble
    on the test data, ``accuracy/NAME`` that of a student, ``class_accuracy/NAME`` the ensemble's
    on the samples of a class. Where samples name their client, ``client_accuracy/NAME`` is the
    ensemble's on those of a client; likewise the chosen metrics, such as ``f1``. Metrics on
    validation data have the prefix ``val/``. The arguments are those of ``Federation``.
    """

    def __init__(
        self,
        clients: dict[str, int],
        model_options: dict[str, Any],
        batchnorm: BatchNormStatistics,
        seed: int,
        metrics: MetricOptions,
    ) -> None:
        super().__init__()
        self.clients, self.model_options, self.seed = clients, model_options, seed
        self.chosen_metrics = metrics
        self.evaluation = EvaluationMetrics(metrics)
        self._predictions: list[tuple[Tensor, Tensor]] = []  # logits and labels of each batch
        self.batchnorm: BatchNormStatistics = batchnorm
        self.students = ModulesByName()  # the models; empty until ``create_students``
        self.classes: tuple[str, ...] = ()
        self.accuracies = ModulesByName()  # of each student and of their ensemble
        self.confusion_matrix: MulticlassConfusionMatrix | None = None

    @property
    def data(self) -> FederatedDataModule:
        """The Trainer's data module, which must be a federated one."""
        if (data := self._federated) is None:
            raise ConfigurationError(
                "a federation needs data that are split over clients: give the Trainer a "
                "FederatedDataModule as datamodule"
            )
        return data

    @property
    def _federated(self) -> FederatedDataModule | None:
        """The Trainer's data module if it is a federated one; None for dataloaders alone."""
        data = getattr(self._trainer, "datamodule", None)  # no Trainer: of a checkpoint
        return data if isinstance(data, FederatedDataModule) else None

    def create_students(
        self, input_shape: Sequence[int], classes: Sequence[str], pretrained: bool
    ) -> None:
        """Create the models, ``pretrained`` from weights that come with them, if there are any."""
        self.classes = tuple(classes)
        for number, name in enumerate(self.clients):
            own = options_of(name, self.clients, self.model_options)
            with isolated_rng(derive_seed(self.seed, SeedPurpose.INITIALIZATION, number)):
                self.students[name] = create_for(
                    input_shape, name, len(classes), pretrained=pretrained, **own
                )
        for name in (*self.clients, _ENSEMBLE):
            # every process evaluates all test data: there is nothing to synchronize
            self.accuracies[name] = MulticlassAccuracy(
                len(classes), average="micro", sync_on_compute=False, validate_args=False
            )
        self.confusion_matrix = MulticlassConfusionMatrix(
            len(classes), sync_on_compute=False, validate_args=False
        )
        self.evaluation = EvaluationMetrics(self.chosen_metrics, len(classes))

    def create_modules(
        self, module_type: Callable[..., _Module], settings: TrainingSettings, **options: Any
    ) -> dict[str, _Module]:
        """Create a module for each architecture, which trains a copy of the student."""
        options["optimizer"] = settings.optimizer_settings
        device, count = self.trainer.strategy.root_device, len(self.classes)
        return {
            name: module_type(copy.deepcopy(student), count, **options).to(device)
            for name, student in self.students.items()
        }

    def count_step(self) -> None:
        """Advance ``global_step`` after a round; otherwise Lightning would write no checkpoint."""
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def forward(self, x: Tensor) -> Tensor:
        """Return class probabilities of the ensemble of all students, shape (N, C)."""
        if not self.students:
            raise ConfigurationError(
                "this federation has no models yet: fit it, or load one with "
                "Federation.load_from_checkpoint(path)"
            )
        logits = [model(x).float() for model in self.students.values()]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Measure the accuracy of each student and of their ensemble."""
        self._evaluate(batch, self.evaluation_prefix)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Measure the accuracy of each student and of their ensemble on the test data."""
        self._evaluate(batch, "")

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return class probabilities of the ensemble for inputs, also with labels, shape (N, C)."""
        probabilities: Tensor = self(first_entry(batch))
        return probabilities

    @property
    def is_fitting(self) -> bool:
        """Whether the Trainer fits; also in the validation after a round."""
        return self.trainer.state.fn is TrainerFn.FITTING

    @property
    def evaluation_prefix(self) -> str:
        """The prefix of what is measured in a round: on validation data, or on the test data."""
        data = self._federated
        return "" if data is not None and data.validation_examples is None else "val/"

    @property
    def holds_out(self) -> bool:
        """Whether rounds are measured on private data that the clients hold out."""
        return self._federated is not None and self._federated.validation_fraction > 0

    def _evaluate(self, batch: Sequence[Tensor], prefix: str) -> None:
        x, labels = batch[0], batch[1]
        logits = {}
        for name, model in self.students.items():
            with evaluating(model, self.batchnorm):
                logits[name] = model(x).float()
        if bool(torch.stack([values.isnan().any() for values in logits.values()]).any()):
            raise FloatingPointError(
                "the students' predictions hold NaN after this round: lower distillation.lr "
                "(--model.distillation.lr), or local.lr in a method without distillation, or "
                "server_lr in one with a server step"
            )
        logits[_ENSEMBLE] = torch.stack(list(logits.values())).mean(dim=0)
        options: dict[str, Any] = {"on_step": False, "on_epoch": True}
        options["logger"] = not self.is_fitting  # a round logs all its metrics at once
        for name, values in logits.items():
            metric = cast(MulticlassAccuracy, self.accuracies[name])
            metric.update(values, labels)
            with _quiet_without_logger():
                self.log(prefix + _key(name), metric, prog_bar=name == _ENSEMBLE, **options)
        assert self.confusion_matrix is not None  # noqa: S101 - students are evaluated
        self.confusion_matrix.update(logits[_ENSEMBLE], labels)
        if self.chosen_metrics or self.evaluated_clients is not None:
            self._predictions.append((logits[_ENSEMBLE], labels))

    def on_validation_epoch_start(self) -> None:
        """Reset the confusion matrix and the kept predictions."""
        assert self.confusion_matrix is not None  # noqa: S101 - students are evaluated
        self.confusion_matrix.reset()
        self._predictions.clear()

    on_test_epoch_start = on_validation_epoch_start

    def on_test_epoch_end(self) -> None:
        """Log the accuracy on each class, the chosen metrics and those of each client."""
        self.log_measured(self.class_accuracies() | self.compute_metrics())

    @property
    def evaluated_clients(self) -> Examples | None:
        """The evaluated data, if their samples name clients."""
        if (data := self._federated) is None:
            return None
        examples = data.test_examples if self.trainer.testing else data.evaluation_examples
        return None if examples.clients is None else examples

    def compute_metrics(self) -> dict[str, float]:
        """Return the chosen metrics, and all metrics by client, after all batches."""
        if not self._predictions:
            return {}
        logits, labels = (torch.cat(parts) for parts in zip(*self._predictions, strict=True))
        self._predictions.clear()
        found = self.evaluation(logits, labels) if self.chosen_metrics else {}
        found.pop(ACCURACY, None)  # is measured for every student
        if (examples := self.evaluated_clients) is not None and examples.clients is not None:
            clients = examples.clients[: len(labels)].to(labels.device)  # fewer: limit_val_batches
            names = self.client_labels(examples.client_names)
            logits = self.client_logits(examples, logits)
            found |= self.evaluation.by_client(logits, labels, clients, names)
        return found

    @property
    def monitored_metrics(self) -> dict[str, bool]:
        """What callbacks can monitor besides accuracies: whether a higher value is better."""
        better = self.evaluation.higher_is_better
        of_clients = {
            f"{part}_client/{k}": v for part in ("mean", "worst") for k, v in better.items()
        }
        return {name: better[name] for name in self.chosen_metrics} | of_clients

    def client_logits(self, examples: Examples, logits: Tensor) -> Tensor:
        """Return the logits by which clients are evaluated."""
        return logits

    def client_labels(self, names: Sequence[str]) -> list[str]:
        """Return what clients are called in logs and figures."""
        return list(names)

    def log_measured(self, metrics: Mapping[str, float], logger: bool = True) -> None:
        """Log numbers that are the same in all processes, without ``logger`` for callbacks only."""
        for name, value in metrics.items():
            exact = torch.tensor(value, dtype=torch.float64)
            # no process sums up: sync_dist only silences a warning
            options: dict[str, Any] = {"logger": logger, "on_epoch": True, "sync_dist": True}
            with _quiet_without_logger():
                self.log(name, exact, rank_zero_only=True, **options)

    def log_round(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round in one row over the round, and the losses for callbacks.

        ``self.log`` would log them over steps, in two rows; so the loggers are called directly.
        """
        losses = {k: v for k, v in metrics.items() if k.startswith(_LOSSES)}
        self.log_measured(losses, logger=False)
        if self.trainer.is_global_zero:
            measured = {name: value for name, value in metrics.items() if name != "round"}
            for logger in self.trainer.loggers:
                logger.log_metrics(measured, step=int(metrics["round"]))

    def compute_accuracies(self) -> dict[str, float]:
        """Return the students' accuracies by their names in logs, after a validation."""
        prefix = self.evaluation_prefix
        return {
            prefix + _key(name): float(cast(MulticlassAccuracy, metric).compute())
            for name, metric in self.accuracies.items()
        }

    @property
    def confusion(self) -> Tensor | None:
        """The confusion matrix of the last evaluation, shape (C, C); None before the first one."""
        metric = self.confusion_matrix
        return metric.compute() if metric is not None and metric.update_called else None

    def class_accuracies(self) -> dict[str, float]:
        """Return the fraction of each class's samples that the ensemble classifies correctly.

        Empty for more than `MAX_CLASSES` classes; a class without samples is left out.
        """
        if self.confusion is None or len(self.classes) > MAX_CLASSES:
            return {}
        counts = self.confusion.double()
        correct, sizes = counts.diagonal().tolist(), counts.sum(dim=1).tolist()
        return {
            f"class_accuracy/{name}": right / size
            for name, right, size in zip(self.classes, correct, sizes, strict=True)
            if size
        }


@contextmanager
def _quiet_without_logger() -> Iterator[None]:
    """Silence a warning of Lightning: what is logged is also returned and monitored."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*but have no logger configured")
        yield


def _key(name: str) -> str:
    return "accuracy" if name == _ENSEMBLE else f"accuracy/{name}"
