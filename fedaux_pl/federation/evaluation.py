"""What the predictions of the students amount to."""

from collections.abc import Iterable, Sequence
from functools import partial
from math import isnan
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from fedaux_pl.federation.evaluation_metrics import ACCURACY, EvaluationMetrics, MetricOptions

MAX_CLASSES = 20
"""With more classes there is no metric of each class's accuracy; the confusion matrix has them."""
MAX_CONFUSIONS = 20
"""The clients that have a confusion matrix of their own, where the evaluated data name them."""


class Predictions(NamedTuple):
    """The predictions for some samples."""

    votes: Tensor  # (N, S + 1), the classes that each student predicts, and their ensemble
    labels: Tensor  # (N,)
    logits: Tensor  # (N, C), of the ensemble; (0, C) where they are not needed


class Evaluation:
    """The students, evaluated alone and as an ensemble, also for each client that the data name.

    ``class_accuracy/NAME`` is the ensemble's accuracy on the samples of a class,
    ``client_accuracy/NAME`` on those of a client. Other metrics: ``Federation``.
    """

    def __init__(self, chosen: MetricOptions, classes: Sequence[str] = ()) -> None:
        self.chosen = chosen
        self.classes = tuple(classes)
        self.metrics = EvaluationMetrics(chosen, len(classes))
        self.confusion: Tensor | None = None  # (C, C), of the last evaluation
        self.client_confusions: dict[str, Tensor] = {}  # of clients that the evaluated data name
        self._batches: list[Predictions] = []
        self._count = partial(
            multiclass_confusion_matrix, num_classes=len(classes), validate_args=False
        )

    def begin(self) -> None:
        """Drop the predictions of an evaluation that was interrupted."""
        self._batches.clear()

    def add(self, members: Tensor, labels: Tensor, keep_logits: bool) -> None:
        """Add a batch: the logits of each student, shape (S, N, C), and the labels."""
        if bool(members.isnan().any()):
            raise FloatingPointError(
                "the students' predictions hold NaN after this round: lower distillation.lr "
                "(--model.distillation.lr), or local.lr in a method without distillation, or "
                "server_lr in one with a server step"
            )
        ensemble = members.mean(dim=0)
        votes = torch.cat([members, ensemble[None]]).argmax(dim=2).T
        self._batches.append(Predictions(votes, labels, ensemble if keep_logits else ensemble[:0]))

    @property
    def count(self) -> int:
        """The number of samples so far."""
        return sum(len(batch.labels) for batch in self._batches)

    def join_batches(self) -> Predictions:
        """Return all predictions, and forget them."""
        joined = Predictions(*map(torch.cat, zip(*self._batches, strict=True)))
        self._batches.clear()
        return joined

    def measure(self, predictions: Predictions, names: Iterable[str]) -> dict[str, float]:
        """Return accuracies, of the students by their names, and the chosen metrics."""
        votes, labels, logits = predictions
        students = [f"{ACCURACY}/{name}" for name in names]
        correct = (votes == labels[:, None]).sum(dim=0) / len(labels)
        metrics = dict(zip([*students, ACCURACY], correct.tolist(), strict=True))
        self.confusion = self._count(votes[:, -1], labels)
        metrics |= self.class_accuracies()
        if self.chosen:
            metrics |= self.metrics(logits, labels) | {ACCURACY: metrics[ACCURACY]}
        return metrics

    def measure_clients(
        self, logits: Tensor, labels: Tensor, clients: Tensor, names: Sequence[str]
    ) -> dict[str, float]:
        """Return all metrics by client; see ``EvaluationMetrics.by_client``."""
        self.client_confusions = {}
        for number, name in enumerate(names[:MAX_CONFUSIONS]):
            is_of_client = clients == number
            if is_of_client.any():
                self.client_confusions[name] = self._count(
                    logits[is_of_client].argmax(dim=1), labels[is_of_client]
                )
        return self.metrics.by_client(logits, labels, clients, names)

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
    def monitored(self) -> dict[str, bool]:
        """What callbacks can monitor besides accuracies: whether a higher value is better."""
        better = self.metrics.higher_is_better
        monitored = {name: better[name] for name in self.chosen}
        for prefix in ("mean_client/", "worst_client/"):
            monitored |= {prefix + name: is_higher for name, is_higher in better.items()}
        return monitored
