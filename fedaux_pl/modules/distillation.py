"""Distillation at the server (FedAUX, eq. 1): a student learns the teachers' soft labels."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from fedaux_pl.functional import distillation_loss
from fedaux_pl.modules.batch_checks import check_inputs, check_soft_labels, unpack_pair
from fedaux_pl.modules.classifier_module import ClassifierModule, TrainedPart
from fedaux_pl.modules.optimizers import OptimizerSettings


class DistillationModule(ClassifierModule):
    """Train a student on soft labels with the Kullback-Leibler divergence.

    Training batches are (inputs, soft labels). Soft labels are probabilities of shape (N, C), as
    ``fedaux_pl.functional.soft_labels`` returns them. Validation and test batches are
    (inputs, labels). The default optimizer is the paper's for images. Logs ``train/loss``,
    ``train/agreement`` (of the classes of student and soft labels), ``val/loss``,
    ``val/accuracy``, ``test/loss`` and ``test/accuracy``. Arguments that are not listed are those
    of ``ClientModule``.

    Args:
        temperature: See ``distillation_loss``.

    Examples:
        >>> import torch
        >>> from fedaux_pl import DistillationModule
        >>> from fedaux_pl.functional import soft_labels
        >>> student = DistillationModule("resnet8", 10, model_options={"width": 0.125})
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> teacher_logits = torch.randn(3, 4, 10)  # 3 teachers, 4 images, 10 classes
        >>> loss = student.training_step((images, soft_labels(teacher_logits)), 0)
        >>> loss.shape
        torch.Size([])
    """

    option: ClassVar[str] = "distillation"

    def __init__(
        self,
        model: str | nn.Module = "resnet8",
        num_classes: int | None = None,
        trained: TrainedPart = "full",
        optimizer: OptimizerSettings = OptimizerSettings(lr=5e-5),  # noqa: B008 - frozen
        model_options: dict[str, Any] | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(model, num_classes, trained, optimizer, model_options)
        self.temperature = temperature
        self.agreement = MulticlassAccuracy(self.num_classes, average="micro")

    def check_batch(self, batch: Any) -> None:
        """Raise a ValueError unless a batch is (inputs, soft labels) with valid values."""
        x, targets = unpack_pair(batch)
        check_inputs(self.model, x)
        check_soft_labels(targets, self.num_classes)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Compute D_KL(soft labels, softmax(f(x))); log how often student and teachers agree."""
        x, targets = batch
        logits = self.network(x).float()
        targets = targets.to(logits.dtype)
        loss = distillation_loss(logits, targets, self.temperature)
        self.log_training(loss, len(targets))
        if self._trainer is not None:
            self.agreement(logits.detach(), targets.argmax(dim=-1))
            self.log("train/agreement", self.agreement, on_epoch=True, on_step=False)
        return loss
