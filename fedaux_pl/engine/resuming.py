"""Whether a checkpoint belongs to the run that asks for it."""

from collections.abc import Mapping
from typing import Any

from fedaux_pl.errors import ConfigurationError


def check_same_settings(kept: Mapping[str, Any], asked: Mapping[str, Any], path: str = "") -> None:
    """Raises a ConfigurationError that names the first setting in which two runs differ."""
    for name in sorted(kept.keys() | asked.keys()):
        where = f"{path}{name}"
        old, new = kept.get(name), asked.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            check_same_settings(old, new, f"{where}.")
        elif old != new:
            raise ConfigurationError(
                f"the checkpoint was made with {where} = {old!r}, but this run asks for {new!r}: "
                "use the same setting, or start anew without the checkpoint"
            )
