"""Answers settings of version 1.0 that version 2.0 no longer has with what to do instead."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from fedaux_pl._version import __version__
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.removed import REMOVED


def refuse_removed(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigurationError if a setting of version 1.0 is among these, nested or not.

    Examples:
        >>> refuse_removed({"model": {"clients": {"resnet8": 10}}, "data.alpha": 0.1})
    """
    for option, value in _flat(settings):
        *_, name = str(value).removeprefix("fedaux_pl.").rpartition(".")
        is_ours = "." not in str(value) or str(value).startswith("fedaux_pl.")
        is_class = is_ours and name[:1].isupper()
        parents = accumulate(option.split("."), "{}.{}".format)
        for removed in (*parents, f"{option}={value}", name if is_class else ""):
            if removed in REMOVED:
                raise ConfigurationError(explain(removed))


def explain(name: str) -> str:
    """Return the line about a name in ``REMOVED``."""
    return f"{name} was removed after version 1.0, and this is {__version__}: {REMOVED[name]}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all settings with their whole names, as they are typed on the command line."""
    for key, value in settings.items():
        parts = [part for part in f"{prefix}.{key}".split(".") if part]
        name = ".".join(part for part in parts if part not in ("init_args", "class_path"))
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value
