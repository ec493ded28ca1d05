"""The base of all modules that learn h_0 from unlabeled data, and the quality of features."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat as cat

from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.errors import check_setting
from fedaux_pl.models import save_backbone
from fedaux_pl.modules.batch_checks import check_inputs, first_entry
from fedaux_pl.modules.model_argument import resolve_model, without_head
from fedaux_pl.modules.optimizers import OptimizedModule, OptimizerSettings
from fedaux_pl.modules.state_dicts import copy_state
from fedaux_pl.processes import Processes

Batch = Tensor | Sequence[Any]


class SelfSupervised(OptimizedModule):
    """Features h under Lightning; subclasses define the training loss.

    Validation computes kNN accuracy if batches are (inputs, labels). With two data loaders the
    first has the neighbors and the second the queries; with one, the samples of each batch are
    neighbors and queries in turn. ``forward`` returns the features. The arguments are those of
    ``SimCLR``, and values that checkpoints hold in place of others.
    """

    option: ClassVar[str] = "pretraining"
    is_distributed = False  # whether a training step communicates with other processes

    def __init__(
        self,
        model: str | nn.Module,
        knn_k: int,
        optimizer: OptimizerSettings,
        model_options: dict[str, Any] | None = None,
        **plain: Any,
    ) -> None:
        super().__init__(model, optimizer, **plain)
        # Without the head all parameters have gradients, which DDP requires.
        self.backbone: Any = without_head(resolve_model(model, 1, model_options))
        self.knn_accuracy = KNNAccuracy(k=knn_k)

    def forward(self, x: Tensor) -> Tensor:
        """Compute h(x), the features of shape (N, d); raise a ValueError for inputs it misreads."""
        check_inputs(self.backbone, x)
        features: Tensor = self.backbone.features(x)
        return features

    def backbone_state(self) -> dict[str, Tensor]:
        """Return a copy of h_0's weights, for ``fedaux_pl.models.load_backbone``."""
        return copy_state(self.backbone)

    def save_backbone(self, path: str | Path) -> Path:
        """Save h_0 as safetensors; ``load_backbone(model, path)`` loads it into any model."""
        return save_backbone(path, self.backbone)

    def targets(self, inputs: Inputs) -> Tensor | None:
        """Compute what batches hold beside their inputs, for all inputs; None for nothing."""
        return None

    def share_batches(self, processes: Processes) -> None:
        """Divide each batch among processes; without an override each computes all of it."""

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect the features of labeled inputs for the kNN accuracy."""
        if isinstance(batch, Tensor) or len(batch) < 2:
            return
        features = self(first_entry(batch))
        labels = batch[1]
        if len(self.trainer.num_val_batches) > 1:
            self.knn_accuracy.update(features, labels, query=dataloader_idx > 0)
        else:
            self.knn_accuracy.update(features[::2], labels[::2], query=False)
            self.knn_accuracy.update(features[1::2], labels[1::2], query=True)

    def on_validation_epoch_end(self) -> None:
        """Log the kNN accuracy if there were labels."""
        if self.knn_accuracy.ready:
            accuracy = self.knn_accuracy.compute()
            self.log("val/knn_accuracy", accuracy, prog_bar=True, sync_dist=False)
        self.knn_accuracy.reset()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the features of shape (N, d)."""
        features: Tensor = self(first_entry(batch))
        return features


class KNNAccuracy(Metric):
    """Accuracy of weighted k-nearest-neighbor classification (Wu et al. 2018).

    The k neighbors with the highest cosine similarity to a query vote for its label.

    Args:
        k: The number of neighbors that vote; all of them if there are fewer.
        temperature: A neighbor of similarity s votes with weight exp(s / temperature).
        kwargs: Arguments of ``torchmetrics.Metric``.

    Examples:
        >>> import torch
        >>> from fedaux_pl.modules import KNNAccuracy
        >>> metric = KNNAccuracy(k=1)
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]), query=False)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), query=True)
        >>> metric.compute()
        tensor(0.5000)
    """

    full_state_update = False
    higher_is_better = True

    neighbors: list[Tensor]
    neighbor_labels: list[Tensor]
    queries: list[Tensor]
    query_labels: list[Tensor]

    def __init__(self, k: int = 200, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_setting("k", k, k >= 1, "be at least 1")
        check_setting("temperature", temperature, temperature > 0, "be positive")
        self.k = k
        self.temperature = temperature
        for name in ("neighbors", "neighbor_labels", "queries", "query_labels"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor, query: bool) -> None:
        """Add features (N, d) and labels (N,) of queries or of neighbors."""
        normalized = F.normalize(features.detach().float(), dim=1)
        (self.queries if query else self.neighbors).append(normalized)
        (self.query_labels if query else self.neighbor_labels).append(labels)

    @property
    def ready(self) -> bool:
        """Whether there are neighbors and queries."""
        return any(map(len, self.neighbors)) and any(map(len, self.queries))

    def compute(self) -> Tensor:
        """Compute the accuracy, in [0, 1]."""
        if not self.ready:
            raise ValueError("there are no neighbors or no queries: call update for both first")
        from lightly.utils.benchmarking.knn import knn_predict  # the import takes seconds

        neighbors = cat(self.neighbors).T.contiguous()
        labels = cat(self.neighbor_labels)
        queries = cat(self.queries)
        expected = cat(self.query_labels)
        classes = int(max(labels.max(), expected.max())) + 1
        k = min(self.k, neighbors.shape[1])
        chunks = -(-len(queries) // 1024)
        correct = torch.zeros((), device=queries.device)
        for x, y in zip(queries.chunk(chunks), expected.chunk(chunks), strict=True):
            ranking = knn_predict(x, neighbors, labels, classes, knn_k=k, knn_t=self.temperature)
            correct += (ranking[:, 0] == y).sum()
        return correct / len(expected)
