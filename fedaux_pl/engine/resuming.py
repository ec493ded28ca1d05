"""Which checkpoint is meant, and whether it belongs to the run that asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedaux_pl.errors import ConfigurationError


def check_same_settings(kept: Mapping[str, Any], asked: Mapping[str, Any], path: str = "") -> None:
    """Raises a ConfigurationError that names the first setting in which two runs differ."""
    # What only one of them has, the options of another method, comes after what both have.
    common = kept.keys() & asked.keys()
    for name in [*sorted(common), *sorted((kept.keys() | asked.keys()) - common)]:
        where = f"{path}{name}"
        old, new = kept.get(name), asked.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            check_same_settings(old, new, f"{where}.")
        elif old != new:
            raise ConfigurationError(
                f"the checkpoint was made with {where} = {old!r}, but this run asks for {new!r}: "
                "use the same setting, or start anew without the checkpoint"
            )


def find_checkpoint(ckpt_path: str | None, root: Path) -> Path | None:
    """The path of a checkpoint, or of the newest one below ``root`` for 'last'."""
    if ckpt_path is None:
        return None
    if ckpt_path != "last":
        path = Path(ckpt_path)
        if not path.is_file():
            raise ConfigurationError(f"there is no checkpoint at {path.absolute()}")
        return path
    found = sorted(root.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigurationError(
            f"there is no last.ckpt below {root.absolute()}: give the path of a checkpoint, or "
            "start a run with `fedaux-pl fit` and no --ckpt_path"
        )
    return found[-1]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a federation's checkpoint; its tensors are read when they are used."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # a file that is something else can surface as nearly any exception of the unpickler
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigurationError(f"{path} cannot be read as a checkpoint ({reason})") from error
    if not isinstance(checkpoint, dict) or "federation" not in checkpoint:
        raise ConfigurationError(
            f"{path} is not the checkpoint of a federation: use one that `fedaux-pl fit` wrote"
        )
    return checkpoint
