"""How to go on after Ctrl-C or SIGTERM."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from fedaux_pl.engine.checkpoints import AtomicCheckpointIO


def describe_resumption(trainer: pl.Trainer, federation: Any, from_command_line: bool) -> str:
    """Say how to resume an interrupted fit, or what is kept without a checkpoint.

    Args:
        trainer: The interrupted Trainer.
        federation: Its federation.
        from_command_line: Whether to name the option or the argument of ``fit``.
    """
    checkpoint, rounds = _newest_checkpoint(trainer), len(federation.history)
    so_far = f"interrupted after round {rounds}" if rounds else "interrupted in or before round 1"
    if checkpoint is None:
        cache = Path(trainer.default_root_dir) / "cache"
        has_h0 = federation.algorithm.pretrained and cache.is_dir()
        kept = f"; finished pre-trainings are kept in {cache}" if has_h0 else ""
        return f"{so_far}, without a checkpoint: start again{kept}"
    if not from_command_line:
        call = f'trainer.fit(federation, datamodule=data, ckpt_path="{checkpoint}")'
        return f"{so_far}: resume with {call}"
    return f"{so_far}: resume with --ckpt_path {checkpoint}"


def _newest_checkpoint(trainer: pl.Trainer) -> Path | None:
    """The newest checkpoint of this fit, or the one that it has resumed."""
    if isinstance(writer := trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        writer.finish()
    paths: list[Any] = [trainer.ckpt_path]
    for callback in trainer.checkpoint_callbacks:
        # attributes of ModelCheckpoint; other checkpoint callbacks need not have them
        paths += [getattr(callback, name, "") for name in ("last_model_path", "best_model_path")]
    existing = [Path(path) for path in paths if path and Path(path).is_file()]
    return max(existing, key=lambda path: path.stat().st_mtime_ns, default=None)
