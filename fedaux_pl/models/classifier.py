"""The base class of all architectures, classifiers f = g o h, and functions on their weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaux_pl.models.arguments import check_int


class Classifier(nn.Module, ABC):
    """A network f = g o h: a linear head g on features h(x).

    Args:
        num_classes: Number of outputs, at least 1.
        feature_dim: Length of the feature vector of a sample.

    Attributes:
        inputs: The kind of inputs, which determines how h_0 is pre-trained on unlabeled data.
        fixed_size_inputs: Whether all inputs of a data set have the same size, so that predictions
            can be captured in a CUDA graph. Texts do not: their padding is trimmed.
        feature_dim: Length of the feature vector of a sample.
        head: The linear layer from the features to the outputs.
    """

    inputs: ClassVar[Literal["images", "tokens"]]
    fixed_size_inputs: ClassVar[bool] = True
    feature_dim: int
    head: nn.Linear

    def __init__(self, num_classes: int, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = check_int("feature_dim", feature_dim)
        self.head = nn.Linear(feature_dim, check_int("num_classes", num_classes))

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Map inputs to features of shape (N, feature_dim)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to logits of shape (N, num_classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def lengths(self, x: Tensor) -> Tensor:
        """The length of each input, shape (N,): the number of tokens of a text, 1 for images."""
        return torch.ones(len(x), dtype=torch.long, device=x.device)

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError if the model cannot read an input of a data set.

        Called once before training, with all inputs of the data set.
        """


def load_backbone(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the weights of h, such as a pre-trained h_0, and leave the head g as it is.

    Args:
        model: A network f = g o h whose head is called ``head``.
        state: The state dict of h; entries of a head are ignored.

    Raises:
        ValueError: If the state dict does not belong to this architecture.

    Example:
        >>> from fedaux_pl.models import create_model
        >>> pretrained = create_model("resnet8", num_classes=1, width=0.125)
        >>> model = create_model("resnet8", num_classes=10, width=0.125)
        >>> load_backbone(model, pretrained.state_dict())
        >>> bool((model.conv1.weight == pretrained.conv1.weight).all())
        True
    """
    own = {key: value for key, value in model.state_dict().items() if not of_head(key)}
    given = {key: value for key, value in state.items() if not of_head(key)}
    differing = sorted(
        key
        for key in own.keys() | given.keys()
        if key not in own or key not in given or own[key].shape != given[key].shape
    )
    if differing:
        raise ValueError(
            f"these weights are not of this architecture: {len(differing)} entries are missing, "
            f"unexpected or of another shape, such as '{differing[0]}'; create the model "
            "with the name and options that the weights were trained with."
        )
    model.load_state_dict(given, strict=False)


def of_head(key: str) -> bool:
    """Whether an entry of a model's state dict belongs to its head g, not to h."""
    return key.startswith("head.")


def parameter_bytes(model: nn.Module) -> int:
    """Size of the parameters of a model in bytes, without its buffers."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
