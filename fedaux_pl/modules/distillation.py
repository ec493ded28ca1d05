"""Distillation at the server (FedAUX, eq. 1): a student learns the teachers' soft labels."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.functional import distillation_loss
from fedaux_pl.modules.backbone import unsaved
from fedaux_pl.modules.classifier import ClassifierModule, TrainedPart
from fedaux_pl.modules.optimizers import OptimizerName


class DistillationModule(ClassifierModule):
    """Trains a student on soft labels by the Kullback-Leibler divergence.

    Training batches are (inputs, soft labels), the latter probabilities of shape (N, C) as
    ``fedaux_pl.functional.soft_labels`` makes them; validation and test batches are (inputs,
    labels). The defaults are the paper's for images.

    Args:
        model: The name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``. A module is not saved with the hyper-parameters: give it again to
            ``load_from_checkpoint``.
        num_classes: C, the number of classes.
        train: ``full`` for all parameters, ``head`` for g alone.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.
    """

    def __init__(
        self,
        model: str | nn.Module = "resnet8",
        num_classes: int = 10,
        train: TrainedPart = "full",
        optimizer: OptimizerName = "adam",
        lr: float = 5e-5,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, num_classes, train, optimizer, lr, momentum, weight_decay, model_options
        )
        self.save_hyperparameters(ignore=unsaved(model))
        self.agreement = MulticlassAccuracy(num_classes, average="micro")

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """D_KL(soft labels, softmax(f(x))), and how often student and teachers agree."""
        x, targets = batch[0], batch[1]
        logits = self(x).float()
        loss = distillation_loss(logits, targets.to(logits.dtype))
        self.log_training(loss, len(targets))
        if self._trainer is not None:
            self.agreement(logits.detach(), targets.argmax(dim=-1))
            self.log("train_agreement", self.agreement, on_epoch=True, on_step=False)
        return loss
