"""Self-supervised pre-training of h_0 on D_aux: SimCLR (Chen et al. 2020; FedAUX, 3.3)."""

from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.data.views import SimCLRViews
from fedaux_pl.functional import nt_xent_loss
from fedaux_pl.modules.backbone import resolve_model, unsaved
from fedaux_pl.modules.optimizers import OptimizerName
from fedaux_pl.modules.selfsupervised import Batch, SelfSupervised


class SimCLR(SelfSupervised):
    """Learns features h by telling two views of an image from the views of all others.

    Training batches are images, alone or first in a tuple; two random views of each are made on
    the device. Where the first entry is itself a pair of images, as lightly's transforms give it,
    that pair is taken for the views. Images are uint8, or floats in [0, 1].

    Validation measures kNN accuracy where batches are (images, labels): with two data loaders the
    first holds the neighbours and the second the queries, with one its samples are neighbours and
    queries by turns. ``forward`` gives the features.

    Args:
        model: The name of an architecture, or a module with ``features``, ``head`` and
            ``feature_dim``, whose head is not used. A module is not saved with the
            hyper-parameters: give it again to ``load_from_checkpoint``.
        temperature: Of the NT-Xent loss.
        projection_dim: The dimension in which views are compared.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        lr: The learning rate.
        momentum: Of sgd alone.
        weight_decay: At least 0.
        min_scale: The smallest share of an image's area that a crop covers.
        flip: The probability of mirroring a view.
        jitter: The probability of changing the colours of a view.
        strength: How much colours are changed, s in the paper of SimCLR.
        grayscale: The probability of removing the colours of a view.
        knn_k: The number of neighbours of the kNN accuracy.
        model_options: Further arguments of ``create_model``, such as ``in_channels``.
    """

    def __init__(
        self,
        model: str | nn.Module = "resnet8",
        temperature: float = 0.5,
        projection_dim: int = 128,
        optimizer: OptimizerName = "adam",
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        min_scale: float = 0.08,
        flip: float = 0.5,
        jitter: float = 0.8,
        strength: float = 0.5,
        grayscale: float = 0.2,
        knn_k: int = 200,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        # Here, since importing it takes seconds that nobody else should wait for.
        from lightly.models.modules.heads import SimCLRProjectionHead

        if not temperature > 0:
            raise ValueError(f"temperature must be positive, but is {temperature}")
        super().__init__(resolve_model(model, 1, model_options), knn_k)
        self.save_hyperparameters(ignore=unsaved(model))
        dim = self.backbone.feature_dim
        self.projection_head = SimCLRProjectionHead(dim, dim, projection_dim)
        self.temperature = temperature
        self.views = SimCLRViews(
            min_scale=min_scale, flip=flip, jitter=jitter, strength=strength, grayscale=grayscale
        )
        self.set_optimizer(optimizer, lr, momentum, weight_decay)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The NT-Xent loss between the two views of every image."""
        views = self._two_views(batch)
        # One pass for both views: BatchNorm sees them together, as in the original.
        projections = self.projection_head(self(views))
        # bfloat16 keeps three digits of a similarity: too few for the logarithm over all pairs.
        with torch.autocast(self.device.type, enabled=False):
            loss = self._contrast(*projections.float().chunk(2))
        self.log_training(loss, len(views) // 2)
        return loss

    def _contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """NT-Xent among the images of all processes."""
        from lightly.utils import dist

        if dist.world_size() == 1:
            return nt_xent_loss(first, second, self.temperature)
        everyone = torch.cat(dist.gather(first)), torch.cat(dist.gather(second))
        offset = dist.rank() * len(first)
        return nt_xent_loss(first, second, self.temperature, everyone, offset)

    def _two_views(self, batch: Batch) -> Tensor:
        """One view of every image, then the second of every image."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        if isinstance(images, Tensor):
            views: Tensor = self.views(images, of_each=2)
            return views
        if len(images) != 2:
            raise ValueError(
                f"a batch must hold images or a pair of their views, but holds {len(images)} views"
            )
        return torch.cat(images)
