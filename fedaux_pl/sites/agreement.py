"""The settings that the server and every site must share, compared with every request."""

import json
from collections.abc import Mapping
from typing import Any

from fedaux_pl.federation import Federation
from fedaux_pl.sites.wire import FORMAT

_SHARED = ("algorithm", "clients", "train", "model_options", "seed")
ASKED = ("epochs", "batch_size")
"""What the server may ask for in a request, within the limits of a site."""


def agreement(federation: Federation) -> dict[str, Any]:
    """The settings of a federation that determine what a site computes, as JSON gives them.

    Architectures, classes and the method are agreed by a common configuration. A server cannot
    change them by a message, and no message names a class to be loaded.
    """
    settings, data = federation.settings(), federation.data
    local = {k: v for k, v in settings["local"].items() if k not in ASKED}
    shared = {
        "format": FORMAT,
        **{name: settings[name] for name in _SHARED},
        "local": local,
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
    }
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str))
    return plain


def differences(own: Mapping[str, Any], other: object) -> list[str]:
    """The settings in which two agreements differ, with both values.

    Example:
        >>> differences({"seed": 0, "train": "full"}, {"seed": 1, "train": "full"})
        ['seed is 0 here, 1 at the server']
    """
    if not isinstance(other, Mapping):
        return ["the server has sent no settings"]
    found = []
    for name in sorted({*own, *other}):
        here, there = own.get(name), other.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found += [f"{name}.{text}" for text in differences(here, there)]
        elif here != there:
            found.append(f"{name} is {here!r} here, {str(there)[:200]!s} at the server")
    return found
