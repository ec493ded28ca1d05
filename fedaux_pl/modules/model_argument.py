"""The argument ``model`` of the LightningModules: a name, or a module f = g o h."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedaux_pl.lightning import pl
from fedaux_pl.models import create_model

_NOT_SAVED = "not saved: "


def resolve_model(
    model: str | nn.Module, num_classes: int, options: Mapping[str, Any] | None
) -> nn.Module:
    """Create a model by name with these options of ``create_model``, or check a given module.

    A module without ``feature_dim`` gets it from its head.
    """
    if options and "num_classes" in options:
        raise ValueError("num_classes is not one of model_options: give it as an argument")
    if isinstance(model, type):
        raise TypeError(f"model: got the class {model.__name__}; expected an object: create one")
    if isinstance(model, str):
        if model.startswith(_NOT_SAVED):
            raise ValueError(
                f"pass model=..., the {model.removeprefix(_NOT_SAVED)} that was trained: a "
                "checkpoint holds the weights of a network that was given as an object, but not "
                "its code"
            )
        return create_model(model, num_classes, **(options or {}))
    if options:
        raise ValueError("model_options belong to a model given by name, not to a module")
    in_features = getattr(getattr(model, "head", None), "in_features", None)
    if not hasattr(model, "feature_dim") and in_features is not None:
        model.feature_dim = in_features
    # Not isinstance with a Protocol: since Python 3.12 it does not find a module's submodules.
    missing = [name for name in ("features", "head", "feature_dim") if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(model).__name__} lacks {', '.join(missing)}: a model needs features(x) -> "
            "(N, d), head and feature_dim = d (see fedaux_pl.models.FeatureClassifier)"
        )
    return model


def count_classes(model: str | nn.Module, num_classes: int | None) -> int:
    """Return the number of classes, by default that of a module's head, 10 for a name."""
    if isinstance(model, str):
        return 10 if num_classes is None else num_classes
    outputs = getattr(getattr(model, "head", None), "out_features", num_classes)
    if num_classes not in (None, outputs):
        raise ValueError(
            f"the model has {outputs} outputs, but num_classes is {num_classes}: change one of them"
        )
    if not isinstance(outputs, int):
        raise ValueError(
            f"the head of {type(model).__name__} does not say how many classes there are (it has "
            "no out_features): pass num_classes"
        )
    return outputs


def without_head(model: nn.Module) -> nn.Module:
    """Return h: a shallow copy that shares all parameters but the head's with the model."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's: only ``forward`` is compiled
    backbone = copy.copy(model)
    backbone._modules = {**model._modules, "head": nn.Identity()}
    return backbone


def save_arguments(
    module: pl.LightningModule,
    model: str | nn.Module | None,
    ignore: Sequence[str] = (),
    **plain: Any,
) -> None:
    """Save the arguments of the constructor that calls this and of its subclasses in checkpoints.

    Of a network the checkpoint has a note that it is not saved, which ``load_from_checkpoint``
    passes on to ``resolve_model``. ``plain`` has values in place of the arguments ``ignore``.
    """
    frame: Any = inspect.currentframe()
    module.save_hyperparameters(ignore=["model", *ignore], frame=frame.f_back)
    values = {**module.hparams, "model": model}
    for name, value in values.items():
        if isinstance(value, nn.Module):
            values[name] = f"{_NOT_SAVED}{type(value).__name__}"
    module.save_hyperparameters({**values, **plain})
