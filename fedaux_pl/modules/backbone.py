"""What the LightningModules ask of a model f = g o h, whether ours by name or somebody's own."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedaux_pl.models import create_model


def resolve_model(
    model: str | nn.Module, num_classes: int, options: Mapping[str, Any] | None
) -> nn.Module:
    """Creates a model from its name, or checks that a given one shows its features and its head."""
    if isinstance(model, str):
        return create_model(model, num_classes, **(options or {}))
    if options:
        raise ValueError("model_options belong to a model given by name, not to a module")
    # Not isinstance with a Protocol: from Python 3.12 on that does not see a module's submodules.
    if lacking := [n for n in ("features", "head", "feature_dim") if not hasattr(model, n)]:
        raise TypeError(
            f"{type(model).__name__} lacks {', '.join(lacking)}: a model needs features(x) -> "
            "(N, d), head and feature_dim = d (see fedaux_pl.models.FeatureClassifier)"
        )
    return model


def without_head(model: nn.Module) -> nn.Module:
    """h alone: shares every parameter but the head's with the model, which stays as it is."""
    backbone = copy.copy(model)
    backbone._modules = {**model._modules, "head": nn.Identity()}
    return backbone


def unsaved(model: object) -> list[str]:
    """The arguments that are no hyper-parameters: a module is weights, its name is a value."""
    return [] if model is None or isinstance(model, str) else ["model"]
