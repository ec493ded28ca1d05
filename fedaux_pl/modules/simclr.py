"""Self-supervised pre-training of h_0 on D_aux: SimCLR (Chen et al. 2020; FedAUX, 3.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.data.views import SimCLRViews, ViewSettings
from fedaux_pl.errors import check_setting
from fedaux_pl.functional import nt_xent_loss
from fedaux_pl.models.image_classifier import check_pixels
from fedaux_pl.modules.batch_checks import check_inputs, first_entry
from fedaux_pl.modules.distributed import (
    average_gradients,
    current_processes,
    gather_rows,
    synchronized_batch_norm,
)
from fedaux_pl.modules.optimizers import OptimizerSettings
from fedaux_pl.modules.self_supervised import Batch, SelfSupervised
from fedaux_pl.processes import Processes


class SimCLR(SelfSupervised):
    """Learn features h by matching the two views of each image among the views of all images.

    Training batches are images, alone or first in a tuple; two random views of each image are
    computed on the device. If the first entry is itself a pair of image tensors, as lightly's
    transforms return it, that pair is used as the views. Images are uint8, or floats in [0, 1].

    Under a Trainer with strategy ``ddp`` the images of all processes are compared with each other.

    Validation and ``forward`` are those of ``SelfSupervised``. Logs ``train/loss`` and, with
    labeled validation batches, ``val/knn_accuracy``.

    Args:
        model: The name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``, whose head is not used. A module is not saved with the
            hyper-parameters: pass it again to ``load_from_checkpoint``.
        temperature: The temperature of the NT-Xent loss.
        projection_dim: The dimension in which views are compared.
        optimizer: The optimizer of all parameters.
        views: How random views differ from their images.
        knn_k: The number of neighbors of the kNN accuracy.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.
        projection_width: The hidden width of the projection head; None for that of the features.

    Examples:
        >>> import pytorch_lightning as pl
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> from fedaux_pl import SimCLR
        >>> images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
        >>> module = SimCLR("resnet8", model_options={"width": 0.125})
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = pl.Trainer(accelerator="cpu", fast_dev_run=True, **quiet)
        >>> trainer.fit(module, DataLoader(images, batch_size=8))
        >>> module(images).shape
        torch.Size([16, 64])
    """

    def __init__(
        self,
        model: str | nn.Module = "resnet8",
        temperature: float = 0.2,
        projection_dim: int = 128,
        optimizer: OptimizerSettings = OptimizerSettings(),  # noqa: B008 - frozen
        views: ViewSettings = ViewSettings(),  # noqa: B008 - frozen
        knn_k: int = 200,
        model_options: dict[str, Any] | None = None,
        projection_width: int | None = None,
    ) -> None:
        from lightly.models.modules.heads import SimCLRProjectionHead  # takes seconds

        check_setting("temperature", temperature, temperature > 0, "be positive")
        super().__init__(model, knn_k, optimizer, model_options, **asdict(views))
        dim = self.backbone.feature_dim
        self.projection_head = SimCLRProjectionHead(dim, projection_width or dim, projection_dim)
        self.temperature = temperature
        self.views = SimCLRViews(views)
        self._sharing = Processes()  # by default a batch belongs to one process
        self._same_batches = False  # whether the batches of all processes are the same

    @classmethod
    def rebuild_arguments(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments, of which checkpoints have plain values."""
        others = dict(saved)
        return {"views": ViewSettings.pop_from(others), **super().rebuild_arguments(others)}

    def share_batches(self, processes: Processes) -> None:
        """Divide each batch among processes that all get the same batches.

        All processes sample the same views, and each computes those of its part of the images.
        BatchNorm uses the statistics of the whole batch and gradients are averaged, so that the
        weights depend on the number of processes by rounding only. With ``Processes()`` each
        process computes whole batches, and they do not.
        """
        self._sharing = processes
        self._same_batches = True
        self.is_distributed = processes.world_size > 1

    def check_batch(self, batch: Batch) -> None:
        """Raise a ValueError for NaN, or images outside [0, 1]; given views may be standardized."""
        images = first_entry(batch)
        if isinstance(images, Tensor):
            check_pixels(images, unit_range=True)
        else:
            for view in images:
                check_inputs(self.backbone, view)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the NT-Xent loss among the images of all processes, the same in each."""
        images = first_entry(batch)
        views = self._two_views(images)
        with synchronized_batch_norm(self, self._sharing):
            # One pass for both views: BatchNorm normalizes them together, as in the original.
            projections = self.projection_head(self.backbone.features(views))
        # In float32: bfloat16 has too few digits for the logarithm of a sum over all pairs.
        with torch.autocast(self.device.type, enabled=False):
            first, second = projections.float().chunk(2)
            first, second = self._gather(first, second, images)
            if batch_idx == 0 and len(first) < 2:  # a smaller last batch is no mistake
                raise ValueError("SimCLR compares images: give it batches of at least 2, not of 1")
            loss = nt_xent_loss(first, second, self.temperature)
        self.log_training(loss, len(views) // 2)
        return loss

    def on_after_backward(self) -> None:
        """Average the gradients of the processes that share batches."""
        average_gradients(self, self._sharing)

    def _two_views(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the first view of every image of this process, then the second of each."""
        if isinstance(images, Tensor):
            local = self._sharing.part(len(images))
            height, width = images.shape[-2:]
            parameters = self.views.sample(2 * len(images), height, width, images.device)
            return self.views.transform(images[local], parameters.part(local, views=2))
        if len(images) != 2:
            raise ValueError(
                f"a batch: got {len(images)} views; expected images or a pair of their views"
            )
        local = self._sharing.part(len(images[0]))
        return torch.cat([view[local] for view in images])

    def _gather(
        self, first: Tensor, second: Tensor, images: Tensor | Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Gather the projections of all processes: of one shared batch, or under DDP of all."""
        processes = self._sharing
        count = len(images if isinstance(images, Tensor) else images[0])
        if not self._same_batches:
            processes = current_processes()
            count *= processes.world_size
        if processes.world_size == 1:
            return first, second
        rows = gather_rows(torch.cat([first, second], dim=1), count, processes)
        first, second = rows.chunk(2, dim=1)
        return first, second
