"""Checkpoints that are either whole or not there."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there when it is complete.

    A process that is killed while it writes leaves the checkpoint of the round before.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Saves to a temporary file in the same folder, flushes it to the disk and renames it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # always the same name: what a killed process leaves is overwritten by the next
        scratch = target.with_name(f".{target.name}.part")
        try:
            with scratch.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
