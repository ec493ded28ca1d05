"""What all ways of learning h_0 from unlabeled data share: features, their measure, optimizer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fedaux_pl.models.states import copy_state
from fedaux_pl.modules.backbone import without_head
from fedaux_pl.modules.knn import KNNAccuracy
from fedaux_pl.modules.optimized import OptimizedModule

Batch = Tensor | Sequence[Any]


class SelfSupervised(OptimizedModule):
    """Features h under Lightning; the subclass says from which loss they are learned.

    Validation measures kNN accuracy where batches are (inputs, labels): with two data loaders the
    first holds the neighbours and the second the queries, with one its samples are neighbours and
    queries by turns. ``forward`` gives the features.
    """

    def __init__(self, model: nn.Module, knn_k: int) -> None:
        super().__init__()
        # Without the head every parameter receives a gradient, which DDP insists on.
        self.backbone = without_head(model)
        self.knn_accuracy = KNNAccuracy(k=knn_k)

    def forward(self, x: Tensor) -> Tensor:
        """h(x), the features of shape (N, d)."""
        features: Tensor = self.backbone.features(x)  # type: ignore[operator]
        return features

    def backbone_state(self) -> dict[str, Tensor]:
        """The weights of h_0, to be loaded by ``fedaux_pl.models.load_backbone``."""
        return copy_state(self.backbone)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collects the features of labelled inputs for the kNN accuracy."""
        if isinstance(batch, Tensor) or len(batch) < 2:
            return
        features, labels = self(batch[0]), batch[1]
        if self._validation_loaders() > 1:
            self.knn_accuracy.update(features, labels, query=dataloader_idx > 0)
        else:
            self.knn_accuracy.update(features[::2], labels[::2], query=False)
            self.knn_accuracy.update(features[1::2], labels[1::2], query=True)

    def _validation_loaders(self) -> int:
        loaders = self.trainer.val_dataloaders
        return len(loaders) if isinstance(loaders, Sequence) else 1

    def on_validation_epoch_end(self) -> None:
        """Logs the kNN accuracy, where there were labels."""
        if self.knn_accuracy.ready:
            self.log("knn_accuracy", self.knn_accuracy.compute(), prog_bar=True, sync_dist=False)
        self.knn_accuracy.reset()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The features of shape (N, d)."""
        features: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return features
