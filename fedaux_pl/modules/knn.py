"""The quality of features: the accuracy of a nearest-neighbor classifier."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat as cat


class KNNAccuracy(Metric):
    """Accuracy of weighted k-nearest-neighbor classification (Wu et al. 2018).

    Neighbors and queries are labeled feature vectors. The k neighbors with the highest cosine
    similarity to a query vote for its label; the accuracy is the fraction of queries with a correct
    vote.

    Args:
        k: The number of neighbors that vote; all of them if there are fewer.
        temperature: A neighbor of similarity s votes with weight exp(s / temperature).
        kwargs: Arguments of ``torchmetrics.Metric``.

    Example:
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
        if k < 1:
            raise ValueError(f"k must be at least 1, but is {k}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, but is {temperature}")
        self.k = k
        self.temperature = temperature
        for name in ("neighbors", "neighbor_labels", "queries", "query_labels"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor, query: bool) -> None:
        """Adds features (N, d) and labels (N,) of queries or of neighbors."""
        normalized = F.normalize(features.detach().float(), dim=1)
        (self.queries if query else self.neighbors).append(normalized)
        (self.query_labels if query else self.neighbor_labels).append(labels)

    @property
    def ready(self) -> bool:
        """Whether there are neighbors and queries."""
        return any(map(len, self.neighbors)) and any(map(len, self.queries))

    def compute(self) -> Tensor:
        """Computes the accuracy, in [0, 1]."""
        if not self.ready:
            raise ValueError("there are no neighbors or no queries: call update for both first")
        # Imported here because the import takes seconds.
        from lightly.utils.benchmarking.knn import knn_predict

        neighbors, labels = cat(self.neighbors).T.contiguous(), cat(self.neighbor_labels)
        queries, expected = cat(self.queries), cat(self.query_labels)
        classes = int(max(labels.max(), expected.max())) + 1
        k = min(self.k, neighbors.shape[1])
        chunks = -(-len(queries) // 1024)
        correct = torch.zeros((), device=queries.device)
        for x, y in zip(queries.chunk(chunks), expected.chunk(chunks), strict=True):
            ranking = knn_predict(x, neighbors, labels, classes, knn_k=k, knn_t=self.temperature)
            correct += (ranking[:, 0] == y).sum()
        return correct / len(expected)
