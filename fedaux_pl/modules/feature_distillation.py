"""Pre-training of h_0 on D_aux by a larger network that was pre-trained before."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.data.views import SimCLRViews, ViewSettings
from fedaux_pl.models.image_classifier import check_pixels
from fedaux_pl.modules.batch_checks import check_inputs, first_entry
from fedaux_pl.modules.model_argument import resolve_model, without_head
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.self_supervised import Batch, SelfSupervised


class FeatureDistillation(SelfSupervised):
    """Learn features h from which the features of a teacher can be predicted.

    Training batches are images, alone or first in a tuple: uint8, or floats in [0, 1]. Network and
    teacher see the same random view of each image. A predictor of two layers maps h(x) to the
    teacher's features, and the loss is 1 - cos of the angle between them. A copy of the teacher is
    used in evaluation mode, and its weights stay. Validation and ``forward`` are those of
    ``SelfSupervised``. Logs ``train/loss`` and, with labeled validation batches,
    ``val/knn_accuracy``. Arguments that are not listed are those of ``SimCLR``.

    Args:
        model: The name of an architecture, or a module, see ``SimCLR``.
        teacher: A module like the model, such as a wider one that SimCLR has trained, or a public
            backbone. It is not saved with the hyper-parameters: pass it again to
            ``load_from_checkpoint``.
        predictor_width: The hidden width of the predictor; None for that of the teacher's features.

    Examples:
        >>> import torch
        >>> from fedaux_pl import FeatureDistillation, create_model
        >>> teacher = create_model("resnet8", num_classes=10, width=0.25)
        >>> module = FeatureDistillation("resnet8", teacher, model_options={"width": 0.125})
        >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> module.training_step(images, 0).shape
        torch.Size([])
        >>> module(images).shape
        torch.Size([8, 64])
    """

    def __init__(
        self,
        model: str | nn.Module,
        teacher: nn.Module,
        optimizer: OptimizerSettings = OptimizerSettings(),  # noqa: B008 - frozen
        views: ViewSettings = ViewSettings(),  # noqa: B008 - frozen
        predictor_width: int | None = None,
        knn_k: int = 200,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        from lightly.models.modules.heads import BYOLPredictionHead  # takes seconds

        super().__init__(model, knn_k, optimizer, model_options, **asdict(views))
        self.teacher: Any = without_head(resolve_model(copy.deepcopy(teacher), 1, None))
        self.teacher.requires_grad_(False)
        dim = self.teacher.feature_dim
        width = predictor_width or dim
        self.predictor = BYOLPredictionHead(self.backbone.feature_dim, width, dim)
        self.views = SimCLRViews(views)

    @classmethod
    def rebuild_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments, of which checkpoints have plain values."""
        others = dict(saved)
        return {"views": ViewSettings.pop_from(others), **super().rebuild_arguments(others)}

    def check_batch(self, batch: Batch) -> None:
        """Raise a ValueError for NaN, images outside [0, 1], or those that the teacher misreads."""
        images = first_entry(batch)
        check_pixels(images, unit_range=True)
        check_inputs(self.teacher, images)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the mean of 1 - cos of the angle between prediction and teacher's features."""
        views = self.views(first_entry(batch))
        target = self.teacher_features(views)
        prediction = self.predictor(self.backbone.features(views))
        with torch.autocast(self.device.type, enabled=False):
            loss = 1 - F.cosine_similarity(prediction.float(), target.float()).mean()
        self.log_training(loss, len(views))
        return loss

    @torch.no_grad()
    def teacher_features(self, views: Tensor) -> Tensor:
        """Compute what is to be predicted, shape (N, d)."""
        self.teacher.eval()
        features: Tensor = self.teacher.features(views)
        self.teacher.train(self.training)  # Lightning warns of layers in evaluation mode
        return features
