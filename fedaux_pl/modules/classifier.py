"""What client training and server distillation share: a classifier, its optimizer, its metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.models.states import copy_state, put_state
from fedaux_pl.modules.backbone import resolve_model
from fedaux_pl.modules.optimized import OptimizedModule
from fedaux_pl.modules.optimizers import OptimizerName

TrainedPart = Literal["full", "head"]


class ClassifierModule(OptimizedModule):
    """A classifier f = g o h under Lightning; the subclass says what loss it is trained with.

    Validation and test batches are (inputs, labels); ``predict`` gives class probabilities for
    batches of inputs, alone or with labels.
    """

    def __init__(
        self,
        model: str | nn.Module,
        num_classes: int,
        train: TrainedPart,
        optimizer: OptimizerName,
        lr: float,
        momentum: float,
        weight_decay: float,
        model_options: dict[str, Any] | None,
    ) -> None:
        super().__init__()
        if train not in ("full", "head"):
            raise ValueError(f"train must be 'full' or 'head', but is {train!r}")
        self.model = resolve_model(model, num_classes, model_options)
        self.head_only = train == "head"
        if self.head_only:
            self.model.requires_grad_(False)
            self._head.requires_grad_(True)
        self.set_optimizer(optimizer, lr, momentum, weight_decay)
        metrics = MetricCollection(
            {"accuracy": MulticlassAccuracy(num_classes, average="micro"), "loss": MeanMetric()}
        )
        self.val_metrics = metrics.clone(prefix="val_")
        self.test_metrics = metrics.clone(prefix="test_")

    @property
    def _head(self) -> nn.Module:
        head = self.model.head
        assert isinstance(head, nn.Module)  # noqa: S101 - resolve_model has checked
        return head

    def train(self, mode: bool = True) -> "ClassifierModule":
        """Sets training mode; a frozen h stays in evaluation mode, its statistics as they are."""
        super().train(mode)
        if self.head_only:
            self.model.eval()
            self._head.train(mode)
        return self

    def on_train_start(self) -> None:
        """The Trainer leaves every module in the mode in which it finds it: a frozen h is set."""
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """f(x), the logits of shape (N, C)."""
        logits: Tensor = self.model(x)
        return logits

    def start_from(self, state: Mapping[str, Tensor]) -> None:
        """Puts the model where a training starts, in place."""
        put_state(self.model, state)

    def trained_state(self) -> dict[str, Tensor]:
        """A copy of the model's weights."""
        return copy_state(self.model)

    def _evaluate(self, batch: Sequence[Tensor], metrics: MetricCollection) -> None:
        x, labels = batch[0], batch[1]
        logits = self(x).float()
        metrics["accuracy"](logits, labels)
        metrics["loss"](F.cross_entropy(logits, labels), weight=len(labels))
        self.log_dict(metrics, prog_bar=True, batch_size=len(labels))

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Accuracy and cross-entropy on (inputs, labels)."""
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Accuracy and cross-entropy on (inputs, labels)."""
        self._evaluate(batch, self.test_metrics)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Class probabilities of shape (N, C)."""
        x = batch if isinstance(batch, Tensor) else batch[0]
        logits: Tensor = self(x)
        return logits.float().softmax(dim=-1)
