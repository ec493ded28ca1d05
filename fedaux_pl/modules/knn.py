"""How good features are: the accuracy of a nearest-neighbour classifier on them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric


class KNNAccuracy(Metric):
    """Accuracy of weighted k-nearest-neighbour classification (Wu et al. 2018).

    Collects features of labelled samples, as neighbours or as queries, and computes the share of
    queries whose label the weighted vote of their k nearest neighbours, by cosine similarity,
    finds.

    Args:
        k: The number of neighbours; all of them where there are fewer.
        temperature: A neighbour at similarity s votes with weight exp(s / temperature).
        kwargs: Arguments of ``torchmetrics.Metric``.
    """

    full_state_update = False
    higher_is_better = True

    bank: list[Tensor]
    bank_labels: list[Tensor]
    queries: list[Tensor]
    query_labels: list[Tensor]

    def __init__(self, k: int = 200, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if k < 1:
            raise ValueError(f"k must be at least 1, but is {k}")
        self.k = k
        self.temperature = temperature
        for name in ("bank", "bank_labels", "queries", "query_labels"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor, query: bool) -> None:
        """Adds features (N, d) and labels (N,), as queries or as neighbours."""
        normalized = F.normalize(features.detach().float(), dim=1)
        (self.queries if query else self.bank).append(normalized)
        (self.query_labels if query else self.bank_labels).append(labels)

    @property
    def ready(self) -> bool:
        """Whether there are both neighbours and queries."""
        return len(self.bank) > 0 and len(self.queries) > 0

    def compute(self) -> Tensor:
        """The accuracy, in 0 ... 1."""
        # Here, since importing it takes seconds that nobody else should wait for.
        from lightly.utils.benchmarking.knn import knn_predict

        bank, labels = _cat(self.bank).T.contiguous(), _cat(self.bank_labels)
        queries, truth = _cat(self.queries), _cat(self.query_labels)
        classes = int(max(labels.max(), truth.max())) + 1
        k = min(self.k, bank.shape[1])
        chunks = -(-len(queries) // 1024)
        correct = torch.zeros((), device=queries.device)
        for part, expected in zip(queries.chunk(chunks), truth.chunk(chunks), strict=True):
            found = knn_predict(part, bank, labels, classes, knn_k=k, knn_t=self.temperature)[:, 0]
            correct += (found == expected).sum()
        return correct / len(truth)


def _cat(parts: list[Tensor] | Tensor) -> Tensor:
    return parts if isinstance(parts, Tensor) else torch.cat(parts)
