"""What every architecture has, whatever its inputs are: f = g o h."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.models.checks import check_positive_int


class Classifier(nn.Module, ABC):
    """A linear head g on features h(x).

    Args:
        num_classes: Number of outputs, at least 1.
        feature_dim: Length of the feature vector of a sample.

    Attributes:
        inputs: What the inputs are, which decides how h_0 is learned from unlabeled ones.
        alike: Whether all inputs of a data set are of one size, so that predictions can be
            recorded. Texts are not: what is padding need not be computed.
        rows_at_once: How many inputs to give at a time where many are to be predicted.
        feature_dim: Length of the feature vector of a sample.
        head: The linear layer from the features to the outputs.
    """

    inputs: ClassVar[Literal["images", "tokens"]]
    alike: ClassVar[bool] = True
    rows_at_once: ClassVar[int] = 2048
    feature_dim: int
    head: nn.Linear

    def __init__(self, num_classes: int, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = check_positive_int("feature_dim", feature_dim)
        self.head = nn.Linear(feature_dim, check_positive_int("num_classes", num_classes))

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Map inputs to features of shape (N, feature_dim)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to outputs before the softmax, of shape (N, num_classes)."""
        outputs: Tensor = self.head(self.features(x))
        return outputs

    def lengths(self, x: Tensor) -> Tensor:
        """How long each input is, where some take less than others: of images all are alike."""
        return torch.ones(len(x), dtype=torch.long, device=x.device)

    def check_inputs(self, x: Tensor) -> None:
        """Refuse inputs that this model cannot read, once and before any training.

        Args:
            x: All inputs of a data set.

        Raises:
            ValueError: If there is an input that the model was not made for.
        """
