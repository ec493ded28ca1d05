"""The argument ``model`` of the LightningModules: a name, or a module f = g o h."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedaux_pl.models import create_model


def resolve_model(
    model: str | nn.Module, num_classes: int, options: Mapping[str, Any] | None
) -> nn.Module:
    """Creates a model by name with these options of ``create_model``, or checks a given module."""
    if not isinstance(options, Mapping | None):
        raise TypeError(
            f"model_options must be a mapping such as {{'width': 0.5}}, not {options!r}"
        )
    if options and "num_classes" in options:
        raise ValueError("num_classes is not one of model_options: give it as an argument")
    if isinstance(model, type):
        raise TypeError(f"model must be an object, but is the class {model.__name__}: create one")
    if isinstance(model, str):
        return create_model(model, num_classes, **(options or {}))
    if options:
        raise ValueError("model_options belong to a model given by name, not to a module")
    # Not isinstance with a Protocol: since Python 3.12 it does not find a module's submodules.
    if missing := [n for n in ("features", "head", "feature_dim") if not hasattr(model, n)]:
        raise TypeError(
            f"{type(model).__name__} lacks {', '.join(missing)}: a model needs features(x) -> "
            "(N, d), head and feature_dim = d (see fedaux_pl.models.FeatureClassifier)"
        )
    return model


def without_head(model: nn.Module) -> nn.Module:
    """Returns h: a shallow copy that shares all parameters but the head's with the model."""
    backbone = copy.copy(model)
    backbone._modules = {**model._modules, "head": nn.Identity()}
    return backbone


def ignored_hyperparameters(model: str | nn.Module | None) -> list[str]:
    """Returns what ``save_hyperparameters`` must ignore: a model that is not given by name."""
    return [] if model is None or isinstance(model, str) else ["model"]
