"""How to go on after Ctrl-C."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl


def describe_resumption(trainer: pl.Trainer, rounds: int, from_command_line: bool) -> str | None:
    """Says how to resume an interrupted fit; None if there is no checkpoint to resume from.

    Args:
        trainer: The interrupted Trainer.
        rounds: The number of finished rounds.
        from_command_line: Whether to name the option or the argument of ``fit``.
    """
    checkpoint = _newest_checkpoint(trainer)
    if checkpoint is None:
        return None
    so_far = f"interrupted after round {rounds}"
    if not from_command_line:
        call = f'trainer.fit(federation, datamodule=data, ckpt_path="{checkpoint}")'
        return f"{so_far}: resume with {call}"
    return f"{so_far}: resume with --ckpt_path {checkpoint}"


def _newest_checkpoint(trainer: pl.Trainer) -> Path | None:
    """The newest checkpoint of this fit, or the one that it has resumed."""
    paths: list[Any] = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        # attributes of ModelCheckpoint; other checkpoint callbacks need not have them
        paths += [getattr(callback, name, "") for name in ("last_model_path", "best_model_path")]
    existing = [Path(path) for path in paths if path and Path(path).is_file()]
    return max(existing, key=lambda path: path.stat().st_mtime_ns, default=None)
