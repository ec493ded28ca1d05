"""Metrics of predictions by torchmetrics, of all samples and of those of each client."""

import math
import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, classification
from torchmetrics.classification import MulticlassAUROC

from fedaux_pl.class_paths import import_class
from fedaux_pl.errors import did_you_mean, first_line

MetricOptions = dict[str, dict[str, Any]]
"""The options of each metric by its name in logs."""

ACCURACY = "accuracy"
_SHORT = {
    "auroc": "MulticlassAUROC",
    "average_precision": "MulticlassAveragePrecision",
    "balanced_accuracy": "MulticlassRecall",
    "ece": "MulticlassCalibrationError",
    "f1": "MulticlassF1Score",
    "kappa": "MulticlassCohenKappa",
    "mcc": "MulticlassMatthewsCorrCoef",
    "precision": "MulticlassPrecision",
    "recall": "MulticlassRecall",
    "specificity": "MulticlassSpecificity",
    "top5_accuracy": "MulticlassAccuracy",
}
_DEFAULTS: MetricOptions = {"top5_accuracy": {"top_k": 5, "average": "micro"}}
_TRIAL_CLASSES = 6  # more than the 5 of top5_accuracy


def read_metrics(given: str | Sequence[str] | Mapping[str, Any] | None) -> MetricOptions:
    """Return the options of each metric by its name in logs, after a trial of all of them.

    Args:
        given: Short names and class paths of torchmetrics, or a mapping from these to options. With
            the option ``class_path`` the name is free: {f2: {class_path: ..., beta: 2.0}}.

    Examples:
        >>> read_metrics(["f1", "torchmetrics.classification.MulticlassHingeLoss"])
        {'f1': {}, 'MulticlassHingeLoss': {'class_path': \
'torchmetrics.classification.MulticlassHingeLoss'}}
    """
    names = [given] if isinstance(given, str) else given or ()
    entries = list(names.items()) if isinstance(names, Mapping) else [(name, {}) for name in names]
    if not all(isinstance(n, str) and isinstance(o, Mapping | None) for n, o in entries):
        raise ValueError(
            f"metrics: got {given!r}; expected names such as [f1, auroc], or names with options "
            "such as {f1: {average: weighted}}"
        )
    chosen: MetricOptions = {}
    for given_name, given_options in entries:
        options = dict(given_options or {})
        name = given_name.rpartition(".")[2]
        if name != given_name:
            options = {"class_path": given_name, **options}
        if name == ACCURACY or "/" in name or name in chosen:
            raise ValueError(
                f"metrics: {name!r} is measured anyway, there twice, or has a '/': leave it out, "
                "or choose another name for it with the option class_path"
            )
        chosen[name] = options
        _try(name, options)
    return chosen


def class_paths(chosen: MetricOptions) -> list[str]:
    """Return the class paths that metrics are imported from."""
    paths = [options.get("class_path", "") for options in chosen.values()]
    return [path for path in paths if "." in path]


def _try(name: str, options: Mapping[str, Any]) -> None:
    metric = _create(name, options, _TRIAL_CLASSES)
    labels = torch.arange(2 * _TRIAL_CLASSES) % _TRIAL_CLASSES
    probabilities = torch.rand(len(labels), _TRIAL_CLASSES, generator=torch.Generator())
    try:
        _compute(metric, probabilities.softmax(dim=1), labels)
    except Exception as error:  # of any class
        raise ValueError(
            f"metrics: {name} does not map class probabilities of shape (N, C) and labels of shape "
            f"(N,) to one number ({first_line(error)}): choose a metric of multi-class "
            "predictions, such as torchmetrics.classification.MulticlassF1Score"
        ) from error


def _create(name: str, options: Mapping[str, Any], num_classes: int) -> Metric:
    """Create a metric with the arguments that every multi-class metric needs."""
    class_path = options.get("class_path", name)
    path = _SHORT.get(class_path, class_path)
    if "." not in path:
        path = f"{classification.__name__}.{path}"
    try:
        kind = import_class(path, Metric)
    except ImportError as error:
        known = [*_SHORT, *(kind for kind in dir(classification) if kind[:5] == "Multi")]
        raise ValueError(
            f"metrics: there is no metric {class_path!r}{did_you_mean(class_path, known)}: give "
            f"one of {', '.join(_SHORT)}, or a class path such as "
            f"torchmetrics.classification.MulticlassFBetaScore ({error})"
        ) from error
    parameters = signature(kind).parameters
    filled: dict[str, Any] = {"task": "multiclass", "num_classes": num_classes}
    arguments = {key: value for key, value in filled.items() if key in parameters}
    arguments |= {**_DEFAULTS.get(class_path, {}), **options}
    arguments.pop("class_path", None)
    average = getattr(parameters.get("average"), "default", None)
    if arguments.get("average", average) == "macro":
        # the classes apart: the mean over those that occur follows, as others have no value
        arguments["average"] = "none"
    try:
        metric: Metric = kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"metrics: {name} cannot be created with {dict(options)}: {first_line(error)}"
        ) from error
    metric.sync_on_compute = False  # every process evaluates all samples
    return metric


def _compute(metric: Metric, probabilities: Tensor, labels: Tensor) -> float:
    """Return the value of a metric, the mean over the classes that occur if it has one of each."""
    metric.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that do not occur
        metric.update(probabilities, labels)
        value = metric.compute()
    if getattr(metric, "average", "") in ("none", None):
        present = torch.bincount(labels, minlength=probabilities.shape[1]) > 0
        is_alone = isinstance(metric, MulticlassAUROC) and int(present.sum()) == 1
        value = math.nan if is_alone else value[present].mean()
    return float(value)


class EvaluationMetrics:
    """Accuracy and the metrics ``chosen`` by ``read_metrics`` of predictions."""

    def __init__(self, chosen: MetricOptions, num_classes: int = 0) -> None:
        self.metrics: dict[str, Metric] = {}
        for name, options in chosen.items():
            metric = _create(name, options, num_classes or _TRIAL_CLASSES)  # 0: not known yet
            metric.validate_args = False  # as labels are: every update would wait for the device
            self.metrics[name] = metric

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Whether a higher value is better, of each metric; true if torchmetrics does not say."""
        better = {ACCURACY: True}
        for name, metric in self.metrics.items():
            better[name] = metric.higher_is_better is not False
        return better

    def __call__(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """Return all metrics of logits (N, C) and labels (N,); without those that are NaN."""
        correct = (logits.argmax(dim=1) == labels).float()
        values: dict[str, Any] = {ACCURACY: float(correct.mean())}
        probabilities = logits.softmax(dim=1) if self.metrics else logits
        for name, metric in self.metrics.items():
            values[name] = _compute(metric.to(logits.device), probabilities, labels)
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def by_client(
        self, logits: Tensor, labels: Tensor, clients: Tensor, names: Sequence[str]
    ) -> dict[str, float]:
        """Return ``client_METRIC/NAME`` of every client with samples, their mean and the worst.

        ``logits`` (N, C) are those of the model that is evaluated for the sample's client,
        ``clients`` (N,) its index in ``names``, -1 for none.
        """
        measured = {}
        for client, name in enumerate(names):
            is_of_client = clients == client
            if is_of_client.any():
                measured[name] = self(logits[is_of_client], labels[is_of_client])
        return self.join(measured)

    def join(self, measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Return the metrics of each client by their names in logs, their mean and the worst."""
        joined: dict[str, float] = {}
        for metric, is_higher in self.higher_is_better.items():
            values = {name: x[metric] for name, x in measured.items() if metric in x}
            if values:
                worst = min if is_higher else max
                joined[f"mean_client/{metric}"] = sum(values.values()) / len(values)
                joined[f"worst_client/{metric}"] = worst(values.values())
                joined |= {f"client_{metric}/{name}": value for name, value in values.items()}
        return joined
