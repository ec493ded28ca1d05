"""The argument ``model`` of the LightningModules: a name, or a module f = g o h."""

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import nn

from fedaux_pl.models import create_model

_NOT_SAVED = "not saved: "


def resolve_model(
    model: str | nn.Module, num_classes: int, options: Mapping[str, Any] | None
) -> nn.Module:
    """Creates a model by name with these options of ``create_model``, or checks a given module.

    A module without ``feature_dim`` gets it from its head.

    Raises:
        TypeError: If the module lacks something.
        ValueError: If the module that a checkpoint was made with is not given.
    """
    if not isinstance(options, Mapping | None):
        raise TypeError(
            f"model_options must be a mapping such as {{'width': 0.5}}, not {options!r}"
        )
    if options and "num_classes" in options:
        raise ValueError("num_classes is not one of model_options: give it as an argument")
    if isinstance(model, type):
        raise TypeError(f"model must be an object, but is the class {model.__name__}: create one")
    if isinstance(model, str) and model.startswith(_NOT_SAVED):
        name = model.removeprefix(_NOT_SAVED)
        raise ValueError(
            f"pass model=..., the {name} that was trained: a checkpoint holds the weights of a "
            "network that was given as an object, but not its code"
        )
    if isinstance(model, str):
        return create_model(model, num_classes, **(options or {}))
    if options:
        raise ValueError("model_options belong to a model given by name, not to a module")
    in_features = getattr(getattr(model, "head", None), "in_features", None)
    if not hasattr(model, "feature_dim") and in_features is not None:
        model.feature_dim = in_features
    # Not isinstance with a Protocol: since Python 3.12 it does not find a module's submodules.
    if missing := [n for n in ("features", "head", "feature_dim") if not hasattr(model, n)]:
        raise TypeError(
            f"{type(model).__name__} lacks {', '.join(missing)}: a model needs features(x) -> "
            "(N, d), head and feature_dim = d (see fedaux_pl.models.FeatureClassifier)"
        )
    return model


def count_classes(model: str | nn.Module, num_classes: int | None) -> int:
    """Returns the number of classes if it is given, else that of a module's head, else 10."""
    if num_classes is not None:
        return num_classes
    if isinstance(model, str):
        return 10
    outputs = getattr(getattr(model, "head", None), "out_features", None)
    if not isinstance(outputs, int):
        raise ValueError(
            f"the head of {type(model).__name__} does not say how many classes there are (it has "
            "no out_features): pass num_classes"
        )
    return outputs


def without_head(model: nn.Module) -> nn.Module:
    """Returns h: a shallow copy that shares all parameters but the head's with the model.

    Of a model that torch.compile has wrapped, h is not compiled: only its ``forward`` would be.
    """
    model = getattr(model, "_orig_mod", model)
    backbone = copy.copy(model)
    backbone._modules = {**model._modules, "head": nn.Identity()}
    return backbone


def model_hyperparameter(model: str | nn.Module) -> str:
    """Returns what checkpoints hold as ``model``: a name, or a note that a module is not saved.

    ``load_from_checkpoint`` without a model passes the note on to :func:`resolve_model`.
    """
    if isinstance(model, str):
        return model
    return f"{_NOT_SAVED}{type(model).__name__}"


def note_networks(hyperparameters: MutableMapping[str, Any]) -> None:
    """Replaces networks by notes that they are not saved.

    Lightning collects the arguments of a subclass, too, and they can be networks.
    """
    for name, value in hyperparameters.items():
        if isinstance(value, nn.Module):
            hyperparameters[name] = model_hyperparameter(value)
