"""The base class of all architectures, classifiers f = g o h, and functions on their weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar, Literal

from torch import Tensor, nn


class Classifier(nn.Module, ABC):
    """A network f = g o h: a linear head g on features h(x).

    Attributes:
        inputs: The kind of inputs, which determines how h_0 is pre-trained on unlabeled data.
        fixed_size_inputs: Whether all inputs of a data set have the same size, so that predictions
            can be captured in a CUDA graph. Texts do not: their padding is trimmed.
        created_as: The name and the options that ``create_model`` has created it with.
        origin: Where its weights are from, for messages.
    """

    inputs: ClassVar[Literal["images", "tokens"]]
    fixed_size_inputs: ClassVar[bool] = True
    created_as: dict[str, Any] | None = None
    origin: str = "the initial weights of the model"

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

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError if the model cannot read all inputs of a data set, before training."""

    def recipe(self) -> dict[str, Any]:
        """Return the ``name`` and ``options`` with which ``create_model`` creates it elsewhere."""
        if self.created_as is None:
            raise ValueError(
                f"this {type(self).__name__} was not created by create_model; create it by name, "
                "so that it can be created again."
            )
        return self.created_as


def is_composition(model: nn.Module) -> bool:
    """Return whether f(x) is g(h(x)): a class with a ``forward`` of its own may compute more."""
    return type(model).forward is Classifier.forward


def of_head(key: str) -> bool:
    """Return whether an entry of a model's state dict belongs to its head g, not to h."""
    return key.startswith("head.")


def backbone_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of h in a model's state dict."""
    return {key: value for key, value in state.items() if not of_head(key)}


def check_int(name: str, value: int, minimum: int = 1) -> int:
    """Raise a TypeError unless ``value`` is an integer, a ValueError if it is below ``minimum``."""
    allowed = f"an integer of at least {minimum}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass {allowed}.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small; pass {allowed}.")
    return value


def check_real(name: str, value: float, *, positive: bool = False) -> float:
    """Raise a TypeError unless ``value`` is a number, a ValueError unless finite (and positive)."""
    allowed = "a finite number greater than 0" if positive else "a finite number"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; pass {allowed}.")
    number = float(value)
    if not math.isfinite(number) or (positive and number <= 0):
        raise ValueError(f"{name}={value!r} is not allowed; pass {allowed}.")
    return number
