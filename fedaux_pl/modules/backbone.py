"""What the LightningModules ask of a model f = g o h, whether ours by name or somebody's own."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor, nn

from fedaux_pl.models import create_model


@runtime_checkable
class FeatureModel(Protocol):
    """A network f = g o h that also shows its features.

    Attributes:
        feature_dim: The dimension d of the features.
        head: g, from features to logits.
    """

    feature_dim: int
    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """h(x), shape (N, d)."""

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) = g(h(x))."""


def resolve_model(
    model: str | nn.Module, num_classes: int, options: Mapping[str, Any] | None
) -> nn.Module:
    """Creates a model from its name, or checks that a given one is a FeatureModel."""
    if isinstance(model, str):
        return create_model(model, num_classes, **(options or {}))
    if options:
        raise ValueError("model_options belong to a model given by name, not to a module")
    if not isinstance(model, FeatureModel):
        lacking = [name for name in ("features", "head", "feature_dim") if not hasattr(model, name)]
        raise TypeError(
            f"{type(model).__name__} lacks {', '.join(lacking)}: a model needs features(x) -> "
            "(N, d), head and feature_dim = d (see fedaux_pl.models.FeatureClassifier)"
        )
    return cast(nn.Module, model)


def without_head(model: nn.Module) -> nn.Module:
    """h alone: shares every parameter but the head's with the model, which stays as it is."""
    backbone = copy.copy(model)
    backbone._modules = {**model._modules, "head": nn.Identity()}
    return backbone


def unsaved(model: object) -> list[str]:
    """The arguments that are no hyper-parameters: a module is weights, its name is a value."""
    return [] if model is None or isinstance(model, str) else ["model"]
