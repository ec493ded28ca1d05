"""The folder of a run, ``ROOT/runs/METHOD-DATA-alphaA-seedS``, whatever its logger."""

import shutil
import warnings
from contextlib import ExitStack, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fedaux_pl.callbacks.report import FederationReport
from fedaux_pl.callbacks.run_view import RunView
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.files import SCRATCH, locked, write_text_atomically
from fedaux_pl.lightning import (
    DummyExperiment,
    LightningArgumentParser,
    ModelCheckpoint,
    SaveConfigCallback,
    TensorBoardLogger,
    pl,
)
from fedaux_pl.names import file_safe
from fedaux_pl.runs.config_files import BEGAN_IN

_LOCK = ".lock"
_KEY = "run_folder"
_PATIENCE = 1.0  # seconds: another process may hold the lock to remove scratch files


class RunLogger(TensorBoardLogger):
    """Logs to TensorBoard in the folder of the run; nothing is written before it is known."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(root, name="runs")
        self.folder: Path | None = None

    @property
    def version(self) -> str:
        """The name of the run's folder."""
        return "" if self.folder is None else self.folder.name

    @property
    def experiment(self) -> Any:
        """TensorBoard's writer; before the folder is known, one that ignores everything."""
        return DummyExperiment() if self.folder is None else super().experiment


class RunFolder(SaveConfigCallback):
    """Gives every run a folder of its own: config.yaml, report, checkpoints and events.

    A new run claims its folder by an exclusive mkdir when all its settings are accepted; a resumed
    run keeps the folder of its checkpoint. A lock keeps other processes from resuming a run that
    still runs. The first process does it, the others follow.
    """

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        super().__init__(parser, config)
        self.folder: Path | None = None
        self.callbacks_without_dirpath: list[ModelCheckpoint] = []
        self._is_new = False
        self._held = ExitStack()  # the lock

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Remember which checkpoint callbacks have no folder; Lightning gives them one later."""
        self.callbacks_without_dirpath = [
            callback
            for callback in trainer.checkpoint_callbacks
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None
        ]

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Add the name of the folder, for checkpoints outside of it (Lightning's for SLURM)."""
        if self.folder is not None:
            checkpoint[_KEY] = self.folder.name

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Find the folder of a resumed run, before other callbacks are restored."""
        path = Path(str(trainer.ckpt_path))
        self._enter(_folder_of_checkpoint(path, _runs(trainer), checkpoint.get(_KEY, "")))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Claim the folder and write config.yaml: the settings and the checkpoint are accepted."""
        checkpoint = str(trainer.ckpt_path)
        first = trainer.strategy.broadcast(checkpoint)
        if first != checkpoint:
            raise ConfigurationError(
                f"the first process resumes from {first}, but this one from {checkpoint}: "
                "give --ckpt_path the path of a checkpoint"
            )
        if trainer.is_global_zero:
            self._is_new = self.folder is None
            self.folder = self.folder or _claim(_runs(trainer), run_name(pl_module))
            self._lock(self.folder)
            self.config.model.threads = pl_module.threads  # chosen in setup, if not given
            settings = self.parser.dump(self.config, skip_none=False)
            text = f"{BEGAN_IN}{Path.cwd()}\n{settings}"
            write_text_atomically(self.folder / self.config_filename, text)
        self._enter(trainer.strategy.broadcast(self.folder))
        for writer in (*trainer.loggers, *trainer.callbacks):  # type: ignore[attr-defined]
            if isinstance(writer, RunLogger | FederationReport):
                writer.folder = self.folder

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Unlock the folder."""
        self._held.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Unlock the folder; remove it if a new run has written nothing but its settings."""
        if self._is_new and self.folder is not None and self.folder.is_dir():
            names = {path.name for path in self.folder.iterdir()}
            if names <= {_LOCK, self.config_filename}:
                shutil.rmtree(self.folder)
        self._held.close()

    def _enter(self, folder: Path | None) -> None:
        """Make it the folder of the run and of its checkpoints."""
        self.folder = folder
        if folder is not None:
            for callback in self.callbacks_without_dirpath:
                callback.dirpath = str(folder / "checkpoints")

    def _lock(self, folder: Path) -> None:
        try:
            self._held.enter_context(locked(folder / _LOCK, patience=_PATIENCE))
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process still runs in {folder}: wait for its end, give --ckpt_path the "
                "checkpoint of another run, or start a new one without it"
            ) from error
        except OSError as error:
            warnings.warn(
                f"{folder} cannot be locked ({error}): do not resume this run before it ends",
                stacklevel=2,
            )


def folder_of(trainer: pl.Trainer) -> Path:
    """Return the folder of a Trainer's run; its root if the run has none (``fast_dev_run``)."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, RunFolder) and callback.folder is not None:
            return callback.folder
    return Path(trainer.default_root_dir)


def _runs(trainer: pl.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "runs"


def run_name(federation: RunView) -> str:
    """Return a name that tells runs apart, such as ``FedDF+P-CIFAR10-alpha0.01-seed0``."""
    settings = federation.data.settings()
    alpha = settings["alpha"]
    if alpha is None:
        split = settings.get("split", f"{settings['num_clients']}-clients")
    else:
        split = f"alpha{alpha:g}"
    method = federation.algorithm.name.replace(" with memory", "")
    parts = (method, federation.data.private_name, split, f"seed{federation.seed}")
    return "-".join(map(file_safe, parts))


def _claim(runs: Path, name: str) -> Path:
    """Create a folder of that name, numbered from 2 on; two processes never get the same one."""
    runs.mkdir(parents=True, exist_ok=True)
    for folder in runs.iterdir():  # what a killed process was writing, unless its run was resumed
        left = list(folder.rglob(f".*{SCRATCH}"))
        with suppress(OSError), locked(folder / _LOCK, patience=0) if left else nullcontext():
            for path in left:
                path.unlink(missing_ok=True)
    for number in count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):  # of an earlier run, or another process was faster
            folder.mkdir()
            break
    return folder


def _folder_of_checkpoint(checkpoint: Path, runs: Path, saved: str) -> Path | None:
    """Return the run's folder if the checkpoint is in it, or beside the runs as SLURM's are."""
    checkpoint = checkpoint.resolve()
    inside = runs.resolve()
    name = ""
    if checkpoint.is_relative_to(inside):
        name = checkpoint.relative_to(inside).parts[0]
    elif checkpoint.parent == inside.parent:
        name = saved
    folder = runs / name
    return folder if name and folder.is_dir() else None
