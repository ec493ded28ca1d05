"""The base of client training and server distillation: a classifier, its optimizer, its metrics."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, cast, get_args

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.errors import check_setting
from fedaux_pl.modules.batch_checks import check_inputs, check_labels, first_entry, unpack_pair
from fedaux_pl.modules.model_argument import count_classes, resolve_model
from fedaux_pl.modules.optimizers import MeanLoss, OptimizedModule, OptimizerSettings
from fedaux_pl.modules.state_dicts import copy_state

TrainedPart = Literal["full", "head"]


class ClassifierModule(OptimizedModule):
    """A classifier f = g o h under Lightning; subclasses define the training loss.

    Validation and test batches are (inputs, labels). ``predict_step`` returns class probabilities
    of batches of inputs, with or without labels. The arguments are those of ``ClientModule``.
    """

    def __init__(
        self,
        model: str | nn.Module,
        num_classes: int | None,
        trained: TrainedPart,
        optimizer: OptimizerSettings,
        model_options: dict[str, Any] | None,
    ) -> None:
        num_classes = count_classes(model, num_classes)
        super().__init__(model, optimizer, num_classes=num_classes)  # the number, not None
        check_setting("trained", trained, trained in get_args(TrainedPart), "be full or head")
        self.num_classes = num_classes
        self.model: Any = resolve_model(model, num_classes, model_options)
        self.head_only = trained == "head"
        self.reads_features = False  # whether training batches have h(x) in place of x
        if self.head_only:
            self.model.requires_grad_(False)
            self.model.head.requires_grad_(True)
        accuracy = MulticlassAccuracy(num_classes, average="micro")
        metrics = MetricCollection({"accuracy": accuracy, "loss": MeanLoss()})
        self.val_metrics = metrics.clone(prefix="val/")
        self.test_metrics = metrics.clone(prefix="test/")

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen h stays in evaluation mode."""
        super().train(mode)
        if self.head_only:
            self.model.eval()
            self.model.head.train(mode)
        return self

    def on_train_start(self) -> None:
        """Set training mode: the Trainer does not change it."""
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """Compute f(x), the logits of shape (N, C); raise a ValueError for inputs it misreads."""
        check_inputs(self.model, x)
        logits: Tensor = self.model(x)
        return logits

    @property
    def network(self) -> nn.Module:
        """What maps the inputs of training batches to logits: f, or g if they are features."""
        if self.reads_features:
            return nn.Sequential(OrderedDict(head=self.model.head))
        return cast("nn.Module", self.model)

    def start_from(self, state: Mapping[str, Tensor]) -> None:
        """Load the model's weights in place, before training starts."""
        self.model.load_state_dict(state)

    def copy_model_state(self) -> dict[str, Tensor]:
        """Return a copy of the model's state dict."""
        return copy_state(self.model)

    def check_batch(self, batch: Any) -> None:
        """Raise a ValueError unless a batch is (inputs, labels) with valid values."""
        x, labels = unpack_pair(batch)
        check_inputs(self.model, x)
        check_labels(labels, self.num_classes)

    def _evaluate(self, batch: Sequence[Tensor], batch_idx: int, metrics: MetricCollection) -> None:
        if batch_idx == 0:  # not check_batch: that of DistillationModule expects soft labels
            check_labels(unpack_pair(batch)[1], self.num_classes)
        logits = self(batch[0]).float()
        labels = batch[1]
        metrics["accuracy"](logits, labels)
        metrics["loss"](F.cross_entropy(logits, labels), weight=len(labels))
        self.log_dict(metrics, prog_bar=True, batch_size=len(labels))

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log accuracy and cross-entropy on (inputs, labels)."""
        self._evaluate(batch, batch_idx, self.val_metrics)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log accuracy and cross-entropy on (inputs, labels)."""
        self._evaluate(batch, batch_idx, self.test_metrics)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Compute class probabilities of shape (N, C)."""
        logits: Tensor = self(first_entry(batch))
        return logits.float().softmax(dim=-1)
