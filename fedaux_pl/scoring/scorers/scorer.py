"""The base class of scorers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor


class Scorer(ABC):
    """How a client summarizes its rows in one vector w_i; <w_i, row(x)> then scores x.

    A subclass is a frozen dataclass whose fields are options. Its docstring proves the bound that
    ``sensitivity`` returns, because the noise is scaled by this bound.
    """

    uses_negatives: ClassVar[bool] = False
    """Whether ``vector`` uses the rows of D^-, which the server then sends to the clients."""
    uses_labels: ClassVar[bool] = False
    """Whether ``vector`` uses the labels of D_i."""
    what: ClassVar[str]
    """What a client releases, for the log, as in "the mean of its feature rows"."""
    shares: ClassVar[Mapping[str, float]] = {}
    """The share of mu^2 of each part of the vector; empty if the vector has only one part."""

    @property
    def flaw(self) -> str:
        """Why the sensitivity does not hold with these options; empty if it holds."""
        return ""

    def sent_shapes(self, row_length: int, num_classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the public tensors that the server sends, named after fields.

        Most scorers need no such tensors.
        """
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the public tensors that the server sends, named after fields."""
        return {name: getattr(self, name) for name in self.sent_shapes(0, 0)}

    @abstractmethod
    def vector(
        self, rows: Tensor, labels: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the vector to which noise is then added.

        Args:
            rows: The rows of D_i, float64 of shape (|D_i|, k), of norm at most 1.
            labels: The one-hot labels of D_i, shape (|D_i|, C); given if ``uses_labels``.
            negatives: The rows of D^-, shape (|D^-|, k); empty or None unless ``uses_negatives``.
        """

    def vector_length(self, row_length: int, num_classes: int) -> int:
        """Return the length of the vector that is computed from rows of length k."""
        return row_length

    def row_length(self, vector: Tensor, num_classes: int) -> int:
        """Return k from a vector whose length is linear in k."""
        constant = self.vector_length(0, num_classes)
        slope = self.vector_length(1, num_classes) - constant
        return (len(vector) - constant) // slope

    @abstractmethod
    def sensitivity(self, num_positives: int, num_negatives: int) -> float:
        """Bound how far replacing one row of D_i can move the vector, in the l2-norm.

        Args:
            num_positives: |D_i|.
            num_negatives: |D^-|; 0 unless ``uses_negatives``.
        """

    def largest_norm(self, num_positives: int, num_negatives: int) -> float:
        """Bound the l2-norm of the vector. A server of sites refuses releases beyond the bound."""
        return math.inf
