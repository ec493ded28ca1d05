"""The server's models under Lightning: what a federation needs around Algorithms 1 and 2."""

import warnings
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_confusion_matrix

from fedaux_pl.data import Examples, FederatedDataModule
from fedaux_pl.engine import SeedPurpose, evaluating, isolated_rng
from fedaux_pl.engine.inference import BatchNormOption, server_statistics
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.evaluation_metrics import ACCURACY, EvaluationMetrics, MetricOptions
from fedaux_pl.functional import derive_seed
from fedaux_pl.models import create_for, options_of, state_key
from fedaux_pl.modules.batch_checks import check_inputs, first_entry

_LOSSES = ("client_loss/mean", "distillation_loss/")  # what callbacks may monitor, as accuracies
MAX_CLASSES = 20
"""With more classes there is no metric of each class's accuracy; the confusion matrix has them."""
MAX_CONFUSIONS = 20
"""The clients that have a confusion matrix of their own, where the evaluated data name them."""


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

    ``class_accuracy/NAME`` is the ensemble's accuracy on the samples of a class,
    ``client_accuracy/NAME`` on those of a client. Arguments and other metrics: ``Federation``.
    """

    def __init__(
        self,
        clients: dict[str, int],
        model_options: dict[str, Any],
        batchnorm_statistics: BatchNormOption,
        seed: int,
        metrics: MetricOptions,
    ) -> None:
        super().__init__()
        self.clients = clients
        self.model_options = model_options
        self.seed = seed
        self.batchnorm_statistics: BatchNormOption = batchnorm_statistics
        self.chosen_metrics = metrics
        self.evaluation = EvaluationMetrics(metrics)
        self.students = ModulesByName()  # the models; empty until ``create_students``
        self.classes: tuple[str, ...] = ()
        self.confusion: Tensor | None = None  # (C, C), of the last evaluation
        self.client_confusions: dict[str, Tensor] = {}  # of clients that the evaluated data name
        # of each batch: predicted classes (N, S + 1), labels (N,), the ensemble's logits if needed
        self._predictions: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def data(self) -> FederatedDataModule:
        """The Trainer's data module, which must be a federated one."""
        if self._federated is None:
            raise ConfigurationError(
                "a federation needs data that are split over clients: give the Trainer a "
                "FederatedDataModule as datamodule"
            )
        return self._federated

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
            options = self.options_of(name)
            with isolated_rng(derive_seed(self.seed, SeedPurpose.INITIALIZATION, number)):
                self.students[name] = create_for(
                    input_shape, name, len(classes), pretrained=pretrained, **options
                )
        self.evaluation = EvaluationMetrics(self.chosen_metrics, len(classes))

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of an architecture."""
        return options_of(name, self.clients, self.model_options)

    def forward(self, x: Tensor) -> Tensor:
        """Return class probabilities of the ensemble of all students, shape (N, C)."""
        if not self.students:
            raise ConfigurationError(
                "this federation has no models yet: fit it, or load one with "
                "Federation.load_from_checkpoint(path)"
            )
        self._check_inputs(x)
        logits = [model(x).float() for model in self.students.values()]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)

    def _check_inputs(self, x: Tensor) -> None:
        for model in self.students.values():
            check_inputs(model, x)

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

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Predict with each student and with their ensemble."""
        x, labels = batch[:2]
        if batch_idx == 0:
            self._check_inputs(x)
        logits = []
        for model in self.students.values():
            with evaluating(model, server_statistics(self.batchnorm_statistics)):
                logits.append(model(x).float())
        members = torch.stack(logits)
        if bool(members.isnan().any()):
            raise FloatingPointError(
                "the students' predictions hold NaN after this round: lower distillation.lr "
                "(--model.distillation.lr), or local.lr in a method without distillation, or "
                "server_lr in one with a server step"
            )
        ensemble = members.mean(dim=0)
        votes = torch.cat([members, ensemble[None]]).argmax(dim=2).T
        is_needed = self.chosen_metrics or self.evaluated_clients is not None
        self._predictions.append((votes, labels, ensemble if is_needed else ensemble[:0]))

    test_step = validation_step

    def on_validation_epoch_start(self) -> None:
        """Drop the predictions of an evaluation that was interrupted."""
        self._predictions.clear()

    on_test_epoch_start = on_validation_epoch_start

    def on_test_epoch_end(self) -> None:
        """Log all metrics on the test data."""
        self.log_measured(self.measure())

    @property
    def evaluated_clients(self) -> Examples | None:
        """The evaluated data, if their samples name clients."""
        data = self._federated
        if data is None:
            return None
        examples = data.test_examples if self.trainer.testing else data.evaluation_examples
        return None if examples.clients is None else examples

    def measure(self) -> dict[str, float]:
        """Return accuracies, chosen metrics and all metrics by client, after all batches."""
        votes, labels, logits = map(torch.cat, zip(*self._predictions, strict=True))
        self._predictions.clear()
        names = [f"{ACCURACY}/{name}" for name in self.students]
        correct = (votes == labels[:, None]).sum(dim=0) / len(labels)
        metrics = dict(zip([*names, ACCURACY], correct.tolist(), strict=True))
        count = partial(
            multiclass_confusion_matrix, num_classes=len(self.classes), validate_args=False
        )
        self.confusion = count(votes[:, -1], labels)
        metrics |= self.class_accuracies()
        if self.chosen_metrics:
            metrics |= self.evaluation(logits, labels) | {ACCURACY: metrics[ACCURACY]}
        examples = self.evaluated_clients
        if examples is not None and examples.clients is not None:
            clients = examples.clients[: len(labels)].to(labels.device)  # fewer: limit_val_batches
            client_names = self.client_labels(examples.client_names)
            logits = self.client_logits(examples, logits)
            metrics |= self.evaluation.by_client(logits, labels, clients, client_names)
            self.client_confusions = {}
            for number, name in enumerate(client_names[:MAX_CONFUSIONS]):
                is_of_client = clients == number
                if is_of_client.any():
                    self.client_confusions[name] = count(
                        logits[is_of_client].argmax(dim=1), labels[is_of_client]
                    )
        return metrics

    def class_accuracies(self) -> dict[str, float]:
        """Return the fraction of each class's samples that the ensemble classifies correctly.

        Empty for more than `MAX_CLASSES` classes; a class without samples is left out.
        """
        if self.confusion is None or len(self.classes) > MAX_CLASSES:
            return {}
        accuracies = (self.confusion.diagonal().double() / self.confusion.sum(dim=1)).tolist()
        by_class = zip(self.classes, accuracies, strict=True)
        return {f"class_accuracy/{name}": value for name, value in by_class if not isnan(value)}

    @property
    def monitored_metrics(self) -> dict[str, bool]:
        """What callbacks can monitor besides accuracies: whether a higher value is better."""
        better = self.evaluation.higher_is_better
        monitored = {name: better[name] for name in self.chosen_metrics}
        for prefix in ("mean_client/", "worst_client/"):
            monitored |= {prefix + name: is_higher for name, is_higher in better.items()}
        return monitored

    def client_logits(self, examples: Examples, logits: Tensor) -> Tensor:
        """Return the logits by which clients are evaluated."""
        return logits

    def client_labels(self, names: Sequence[str]) -> list[str]:
        """Return what clients are called in logs and figures."""
        return list(names)

    def log_measured(self, metrics: Mapping[str, float], logger: bool = True) -> None:
        """Log numbers that are the same in all processes, without ``logger`` for callbacks only."""
        # no process sums up: sync_dist only silences a warning
        options: dict[str, Any] = {"logger": logger, "on_epoch": True, "sync_dist": True}
        with warnings.catch_warnings():  # what is logged is also returned and monitored
            warnings.filterwarnings("ignore", message=".*but have no logger configured")
            for name, value in metrics.items():
                exact = torch.tensor(value, dtype=torch.float64)
                in_bar = name in (ACCURACY, f"val/{ACCURACY}")
                self.log(name, exact, rank_zero_only=True, prog_bar=in_bar, **options)

    def log_round(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a round in one row over the round, and the losses for callbacks.

        ``self.log`` would log them over steps, in two rows; so the loggers are called directly.
        """
        losses = {name: value for name, value in metrics.items() if name.startswith(_LOSSES)}
        self.log_measured(losses, logger=False)
        if self.trainer.is_global_zero:
            measured = dict(metrics)
            round_ = int(measured.pop("round"))
            for logger in self.trainer.loggers:
                logger.log_metrics(measured, step=round_)
