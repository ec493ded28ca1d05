"""Local training of a client (FedAUX, Algorithm 2: theta_i <- train(theta_0 <- theta, D_i))."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.functional import proximal_penalty
from fedaux_pl.modules.backbone import unsaved
from fedaux_pl.modules.classifier import ClassifierModule, TrainedPart
from fedaux_pl.modules.optimizers import OptimizerName


class ClientModule(ClassifierModule):
    """Trains a classifier with cross-entropy, optionally held near where it started.

    With mu > 0 the loss has FedPROX's term mu/2 |theta - theta_0|^2, theta_0 being the parameters
    at the start of the fit. Batches are (inputs, labels).

    Args:
        model: The name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``. A module is not saved with the hyper-parameters: give it again to
            ``load_from_checkpoint``.
        num_classes: C, the number of classes.
        mu: The strength of the proximal term, 0 for none.
        train: ``full`` for all parameters, ``head`` for g alone (linear evaluation).
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
        mu: float = 0.0,
        train: TrainedPart = "full",
        optimizer: OptimizerName = "adam",
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, num_classes, train, optimizer, lr, momentum, weight_decay, model_options
        )
        if not mu >= 0:
            raise ValueError(f"mu must be at least 0, but is {mu}")
        self.save_hyperparameters(ignore=unsaved(model))
        self.mu = mu
        self.anchor: list[Tensor] | None = None

    def start_from(self, state: Mapping[str, Tensor]) -> None:
        """Puts the model where a training starts, which is also what the term holds it near."""
        super().start_from(state)
        if self.mu > 0:
            self.set_anchor()

    def set_anchor(self) -> None:
        """Takes the present parameters as theta_0 of the proximal term."""
        present = [parameter.detach() for parameter in self._trained()]
        if self.anchor is None:
            self.anchor = [tensor.clone() for tensor in present]
        else:  # in place, where recorded steps find it
            for origin, tensor in zip(self.anchor, present, strict=True):
                origin.copy_(tensor)

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def on_train_start(self) -> None:
        """Remembers where the fit starts, unless it goes on from a checkpoint."""
        super().on_train_start()
        resumed = self.anchor is not None and self.trainer.global_step > 0
        if self.mu > 0 and not resumed:
            self.set_anchor()

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy on (inputs, labels), plus the proximal term."""
        x, labels = batch[0], batch[1]
        loss = F.cross_entropy(self(x), labels)
        if self.mu > 0:
            if self.anchor is None:
                self.set_anchor()
            assert self.anchor is not None  # noqa: S101 - for mypy
            loss = loss + proximal_penalty(self._trained(), self.anchor, self.mu)
        self.log_training(loss, len(labels))
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps theta_0, so that a resumed fit is held near the same point."""
        if self.anchor is not None:
            checkpoint["anchor"] = [tensor.cpu() for tensor in self.anchor]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores theta_0."""
        if "anchor" in checkpoint:
            self.anchor = [tensor.to(self.device) for tensor in checkpoint["anchor"]]
