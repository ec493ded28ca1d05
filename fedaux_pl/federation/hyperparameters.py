"""Constructor arguments as plain values, from which a checkpoint creates its federation again."""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaux_pl.algorithms import Algorithm
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.federation.settings import TrainingSettings
from fedaux_pl.scoring import Calibration, FeatureMap, Privacy, Scorer, ScoringRecipe, SecureSums

# A checkpoint is data: it chooses among these kinds of objects, and of classes that are imported.
_KINDS = (
    *(Algorithm, TrainingSettings, Privacy, SecureSums),
    *(ScoringRecipe, Scorer, FeatureMap, Calibration),
)
_NOT_SAVED = "not_saved"


def describe(value: Any) -> Any:
    """Return a value as plain values; an object as its class path and constructor arguments.

    Numbers of NumPy become those of Python: a checkpoint with others could not be loaded.

    Examples:
        >>> from fedaux_pl.algorithms import FedProx
        >>> describe(FedProx(mu=0.01))["init_args"]
        {'mu': 0.01, 'pretrained': False}
    """
    if isinstance(value, Mapping):
        return {str(key): describe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [describe(entry) for entry in value]
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, TrainingSettings):
        arguments = value.plain()
    elif isinstance(value, _KINDS) and is_dataclass(value):
        given = [field.name for field in fields(value) if field.init]
        arguments = {name: getattr(value, name) for name in given}
    elif isinstance(value, _KINDS) and type(value).__init__ is object.__init__:
        arguments = {}  # it has no options
    else:
        is_plain = isinstance(value, str | int | float | bool | None)
        return value if is_plain else {_NOT_SAVED: repr(value)}
    return {
        "class_path": _public_path(type(value)),
        "init_args": {name: describe(argument) for name, argument in arguments.items()},
    }


def _public_path(kind: type) -> str:
    """Return where users import a class from, such as ``fedaux_pl.algorithms``: it never moves."""
    room = ".".join(kind.__module__.split(".")[:2])
    is_exported = getattr(sys.modules.get(room), kind.__qualname__, None) is kind
    return f"{room if is_exported else kind.__module__}.{kind.__qualname__}"


def rebuild(plain: Any) -> Any:
    """Create what `describe` has described."""
    if isinstance(plain, list):
        return [rebuild(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    entries = {key: rebuild(entry) for key, entry in plain.items()}
    if plain.keys() == {_NOT_SAVED}:
        raise ConfigurationError(
            f"the checkpoint does not hold {plain[_NOT_SAVED]}, which the method was created with: "
            "pass the object to load_from_checkpoint, e.g. algorithm=..."
        )
    if plain.keys() != {"class_path", "init_args"}:
        return entries
    kind = _find(str(plain["class_path"]))
    try:
        return getattr(kind, "from_plain", kind)(**entries["init_args"])
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{kind.__name__} cannot be created from the checkpoint ({error}): create the object "
            "and pass it to load_from_checkpoint, e.g. algorithm=..."
        ) from error


def _find(class_path: str) -> type:
    """Return an imported module's class: a file must not choose what is imported."""
    module, _, name = class_path.rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    if isinstance(kind, type) and issubclass(kind, _KINDS):
        return kind
    raise ConfigurationError(
        f"the checkpoint was made with {class_path}, which is not imported or not a part of a "
        f"federation: import {module or class_path} before, or pass the object to "
        "load_from_checkpoint, e.g. algorithm=..."
    )
