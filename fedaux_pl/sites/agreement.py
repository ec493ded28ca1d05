"""The settings that server and sites share: every request repeats them."""

import json
from collections.abc import Mapping
from typing import Any

from fedaux_pl.data import FederatedDataModule
from fedaux_pl.sites.ledger_keys import AGREEMENT_FORMAT
from fedaux_pl.sites.messages.train import SENT_SETTINGS
from fedaux_pl.sites.same_version import minor_version

_SHARED = ("algorithm", "clients", "trained", "model_options", "seed", "rounds")


def create_agreement(settings: Mapping[str, Any], data: FederatedDataModule) -> dict[str, Any]:
    """Return the settings that determine what a site computes, as JSON gives them.

    Server and sites compare them with every request: no message changes them or names a class.

    Args:
        settings: All settings of the federation.
        data: Its data, of which server and sites share the classes and the shape of inputs.
    """
    shared = {name: settings[name] for name in _SHARED if name in settings} | {
        "format": AGREEMENT_FORMAT,
        "version": minor_version(),
        "local": {k: v for k, v in settings["local"].items() if k not in SENT_SETTINGS},
        "classes": list(data.classes),
        "input_shape": list(data.input_shape),
    }
    if settings["batchnorm_statistics"] == "own":  # metrics then depend on training records
        shared["batchnorm_statistics"] = "own"
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str))
    return plain


def differences(expected: Mapping[str, Any], received: object) -> list[str]:
    """Return the settings in which two agreements differ, with both values.

    Examples:
        >>> differences({"seed": 0, "trained": "full"}, {"seed": 1, "trained": "full"})
        ['seed is 0 here, 1 at the server']
    """
    if not isinstance(received, Mapping):
        return ["the server has sent no settings"]
    lines = []
    unexpected = sorted(received.keys() - expected.keys())
    for name in [*expected, *unexpected]:  # a server can invent many, which must hide no other
        here = expected.get(name)
        there = received.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            lines += [f"{name}.{text}" for text in differences(here, there)]
        elif here != there:
            lines.append(f"{name[:80]} is {here!r} here, {str(there)[:200]!s} at the server")
    return lines
