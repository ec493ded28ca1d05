"""Checkpoints of a federation: written atomically, found, loaded and compared with a run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO

from fedaux_pl.errors import ConfigurationError

FORMAT = 2
"""The format of a federation's checkpoints, increased when older ones become unreadable."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file and renames it when it is complete.

    A process that is killed while it writes leaves the checkpoint of the previous round.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Saves to a temporary file in the same folder, flushes it to the disk and renames it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A fixed name: the next write replaces the file that a killed process left.
        temporary = target.with_name(f".{target.name}.part")
        try:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def find_checkpoint(ckpt_path: str | None, root: Path) -> Path | None:
    """Returns the path of a checkpoint.

    Args:
        ckpt_path: A path, "last" for the newest ``last.ckpt`` below ``root``, or None.
        root: The folder to search.

    Raises:
        ConfigurationError: If there is no such file.
    """
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
    """Loads the checkpoint of a federation, with memory-mapped tensors.

    Raises:
        ConfigurationError: If the file is not the checkpoint of a federation.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # The unpickler can raise nearly any exception for a file of another format.
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigurationError(f"{path} cannot be read as a checkpoint ({reason})") from error
    if not isinstance(checkpoint, dict) or "federation" not in checkpoint:
        raise ConfigurationError(
            f"{path} is not the checkpoint of a federation: use one that `fedaux-pl fit` wrote"
        )
    return checkpoint


def check_resumable(content: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises a ConfigurationError if a run with these settings cannot resume from a checkpoint.

    Args:
        content: The content of a federation's checkpoint, with its format and settings.
        settings: The settings of the run.
    """
    found = content.get("format", 1)
    if found != FORMAT:
        changes = ", in which FedAUX takes objects (scorer, feature_map, calibration)"
        raise ConfigurationError(
            f"the checkpoint has format {found}, but this release reads format {FORMAT}"
            f"{changes if found == 1 else ''}: start anew without the checkpoint, or use the "
            "release that wrote it"
        )
    _check_same(content["settings"], settings)


def _check_same(saved: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = "") -> None:
    # Settings of both come first: those of only one follow from another method or architecture.
    common = saved.keys() & requested.keys()
    for name in [*sorted(common), *sorted(saved.keys() ^ requested.keys())]:
        old, new = saved.get(name), requested.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            _check_same(old, new, f"{prefix}{name}.")
        elif old != new:
            raise ConfigurationError(
                f"the checkpoint was made with {prefix}{name} = {old!r}, but this run asks for "
                f"{new!r}: use the same setting, or start a new run without the checkpoint"
            )
