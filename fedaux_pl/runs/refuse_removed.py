"""Answers settings of version 1.0 that version 2.0 no longer has with what to do instead."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from fedaux_pl._version import __version__
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.option_names import nested_settings
from fedaux_pl.runs.removed import REMOVED

_METHOD = "model.algorithm"


def refuse_removed(*settings: Mapping[str, Any]) -> None:
    """Raise a ConfigurationError if a setting of version 1.0 is among these, nested or not.

    A method of the user may have options with the names of removed ones.

    Examples:
        >>> refuse_removed({"model": {"clients": {"resnet8": 10}}, "data.alpha": 0.1})
    """
    given = [
        (_as_typed(name), value) for mapping in settings for name, value in nested_settings(mapping)
    ]
    methods = [value for option, value in given if option == _METHOD and isinstance(value, str)]
    is_own_method = bool(methods) and not _is_ours(methods[-1])
    for option, value in given:
        if is_own_method and option.startswith(f"{_METHOD}."):
            continue
        name = str(value).rpartition(".")[2]
        is_class = _is_ours(value) and name[:1].isupper()
        parents = accumulate(option.split("."), "{}.{}".format)
        for removed in (*parents, f"{option}={value}", name if is_class else ""):
            if removed in REMOVED:
                raise ConfigurationError(explain(removed))


def _is_ours(class_path: Any) -> bool:
    """Whether the path of a class is that of one of this package, short or long."""
    return "." not in str(class_path) or str(class_path).startswith("fedaux_pl.")


def explain(name: str) -> str:
    """Return the line about a name in ``REMOVED``."""
    return f"{name} was removed after version 1.0, and this is {__version__}: {REMOVED[name]}"


def _as_typed(name: str) -> str:
    """Return the name of a setting as it is typed on the command line."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in ("init_args", "class_path"))
