"""Pre-training of h_0 on D_aux by a larger network that was pre-trained before."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaux_pl.data.lazy_inputs import Inputs, read_batches
from fedaux_pl.data.views import SimCLRViews, ViewSettings
from fedaux_pl.errors import ConfigurationError, check_setting, first_line, is_count
from fedaux_pl.models.image_classifier import check_pixels
from fedaux_pl.modules.batch_checks import check_inputs, first_entry
from fedaux_pl.modules.model_argument import resolve_model, without_head
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.self_supervised import Batch, SelfSupervised

_MAX_PIXELS = 2**22  # of all images that the teacher sees at a time


class FeatureDistillation(SelfSupervised):
    """Learn features h from which the features of a teacher can be predicted.

    Training batches are images, alone or first in a tuple: uint8, or floats in [0, 1]. The teacher
    sees each image as it is, the network a random view of it. A predictor of two layers maps h of
    the view to the teacher's features, and the loss is 1 - cos of the angle between them. If the
    second entry of a batch has the teacher's features of its images, as ``targets`` returns them,
    the teacher does not run. A copy of the teacher is used in evaluation mode, and its weights
    stay. Validation and ``forward`` are those of ``SelfSupervised``. Logs ``train/loss`` and, with
    labeled validation batches, ``val/knn_accuracy``. Arguments that are not listed are those of
    ``SimCLR``.

    Args:
        model: The name of an architecture, or a module, see ``SimCLR``.
        teacher: A module like the model, such as a wider one that SimCLR has trained, or a public
            backbone. It is not saved with the hyper-parameters: pass it again to
            ``load_from_checkpoint``.
        predictor_width: The hidden width of the predictor; None for that of the teacher's features.
        teacher_size: Height and width to which images are resized for the teacher; None for none.

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
        teacher_size: int | None = None,
    ) -> None:
        from lightly.models.modules.heads import BYOLPredictionHead  # takes seconds

        is_allowed = teacher_size is None or is_count(teacher_size, 1)
        expected = "be an integer of at least 1, or None"
        check_setting("teacher_size", teacher_size, is_allowed, expected)
        super().__init__(model, knn_k, optimizer, model_options, **asdict(views))
        self.teacher: Any = without_head(resolve_model(copy.deepcopy(teacher), 1, None))
        self.teacher.requires_grad_(False)
        dim = self.teacher.feature_dim
        width = predictor_width or dim
        self.predictor = BYOLPredictionHead(self.backbone.feature_dim, width, dim)
        self.views = SimCLRViews(views)
        self.teacher_size = teacher_size
        self._target_dim = dim

    @classmethod
    def rebuild_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments, of which checkpoints have plain values."""
        others = dict(saved)
        return {"views": ViewSettings.pop_from(others), **super().rebuild_arguments(others)}

    def check_batch(self, batch: Batch) -> None:
        """Raise a ValueError for NaN, images outside [0, 1], or those that the teacher misreads."""
        images = first_entry(batch)
        check_pixels(images, unit_range=True)
        check_inputs(self.teacher, self._resize(images[:1]))

    def targets(self, inputs: Inputs) -> Tensor:
        """Compute the teacher's features of all images, (N, d), for the batches."""
        try:
            check_inputs(self.teacher, self._resize(inputs[:1]))
        except ValueError as error:
            raise ConfigurationError(
                f"the teacher cannot read these images with teacher_size {self.teacher_size} "
                f"({first_line(error)}): set it to the size that the teacher was made for, or "
                "choose another teacher"
            ) from error
        side = self.teacher_size or inputs.shape[2]
        size = max(1, _MAX_PIXELS // side**2)
        rows = [slice(start, start + size) for start in range(0, len(inputs), size)]
        features = [self.teacher_features(images) for images in read_batches(inputs, rows)]
        return torch.cat(features)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the mean of 1 - cos of the angle between prediction and teacher's features."""
        images = first_entry(batch)
        target = self._given_target(batch, len(images))
        if target is None:
            target = self.teacher_features(images)
        views = self.views(images)
        prediction = self.predictor(self.backbone.features(views))
        with torch.autocast(self.device.type, enabled=False):
            loss = 1 - F.cosine_similarity(prediction.float(), target.float()).mean()
        self.log_training(loss, len(views))
        return loss

    @torch.no_grad()
    def teacher_features(self, images: Tensor) -> Tensor:
        """Compute what is to be predicted, shape (N, d)."""
        self.teacher.eval()
        features: Tensor = self.teacher.features(self._resize(images))
        self.teacher.train(self.training)  # Lightning warns of layers in evaluation mode
        return features

    def _given_target(self, batch: Batch, count: int) -> Tensor | None:
        """Return the teacher's features, if they are the second entry of a batch."""
        if isinstance(batch, Tensor) or len(batch) < 2 or not isinstance(batch[1], Tensor):
            return None
        is_target = batch[1].shape == (count, self._target_dim)
        return batch[1] if is_target and batch[1].is_floating_point() else None

    def _resize(self, images: Tensor) -> Tensor:
        """Return images as the teacher reads them."""
        size = self.teacher_size
        if size is None:
            return images
        scale = 255 if images.dtype == torch.uint8 else 1
        return F.interpolate(images.float() / scale, (size, size), mode="bilinear", antialias=True)
