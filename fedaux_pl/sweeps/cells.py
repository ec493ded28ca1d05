"""The cells of a sweep: their settings, and what their folders tell about them."""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fedaux_pl.cli.finished_runs import Run, load_runs
from fedaux_pl.errors import ConfigurationError, UsageError, first_line
from fedaux_pl.sweeps.cell_lock import is_held
from fedaux_pl.sweeps.sweep_file import Cell

# Options that change where and how a run happens, but not its result.
_WITHOUT_EFFECT = (
    *("accelerator", "strategy", "devices", "num_nodes", "default_root_dir", "logger"),
    *("profiler", "log_every_n_steps", "num_sanity_val_steps"),
    *("enable_progress_bar", "enable_model_summary", "enable_checkpointing"),
    *("enable_autolog_hparams", "model_registry", "detect_anomaly", "use_distributed_sampler"),
)
_MANY = 50  # cells that take long enough to show a bar


@dataclass(frozen=True)
class ResolvedCell:
    """A cell with all its settings.

    Attributes:
        cell: The cell.
        config: All settings of its run, defaults included.
        key: The name of its folder: 12 hex digits of the hash of the settings.
    """

    cell: Cell
    config: Mapping[str, Any]
    key: str

    @property
    def rounds(self) -> int:
        """The number of rounds of a complete run."""
        return int(self.config["trainer"]["max_epochs"])


def resolve(cells: Sequence[Cell], *, check: bool = False) -> list[ResolvedCell]:
    """Parses the command lines of cells, which runs nothing.

    Args:
        cells: The cells.
        check: Whether to create their models and data, so that values are refused that a run would
            refuse.

    Raises:
        ConfigurationError: If a command line is wrong, with the coordinates of its cell.
    """
    # torch and Lightning, which take seconds to import, are needed for nothing else here
    from fedaux_pl.callbacks.progress_bars import Bar, is_terminal
    from fedaux_pl.cli.parser import ConfigResolver

    resolver = ConfigResolver()
    resolved = []
    is_shown = len(cells) > _MANY and is_terminal()
    with Bar(total=len(cells), desc="reading cells", leave=False, disable=not is_shown) as bar:
        for cell in cells:
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # the cell is named here
                    config = resolver.resolve(cell.args)
                    if check:
                        resolver.check(config)
                _check(config)
                resolved.append(ResolvedCell(cell, config, config_key(config)))
            except (ConfigurationError, UsageError) as error:
                # a message of an unknown form has many lines
                problem = " ".join(getattr(error, "message", str(error)).split())
                raise ConfigurationError(f"the cell {cell.name}: {problem}") from error
            bar.update()
    return resolved


def config_key(config: Mapping[str, Any]) -> str:
    """The name of the folder of a run with these settings.

    Settings that do not change the result are left out, and unset ones, so that a new option of the
    Trainer changes no key. The source files of classes outside of installed packages are part of
    it, so that a method that was edited runs again.

    Raises:
        ConfigurationError: If such a class cannot be imported.
    """
    trainer = {k: v for k, v in config["trainer"].items() if k not in _WITHOUT_EFFECT}
    content = {**config, "trainer": trainer}
    content.pop("ckpt_path", None)
    return digest({**content, "sources": _sources(config) or None})


def digest(content: Any) -> str:
    """12 hex digits of the hash of plain values.

    Example:
        >>> digest({"a": 1}) == digest({"b": None, "a": 1})
        True
    """
    text = json.dumps(_without_none(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class State(StrEnum):
    """The state of a cell, as its folder shows it."""

    MISSING = "missing"
    RUNNING = "running"
    UNFINISHED = "unfinished"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class CellFolder:
    """The folder of a cell, ``ROOT/cells/KEY``.

    Attributes:
        root: The folder of all output.
        key: The key of the cell.
    """

    root: Path
    key: str

    kind: ClassVar[str] = "cells"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root / self.kind / self.key

    @property
    def log(self) -> Path:
        """What its processes have printed."""
        return self.path / "output.log"

    @property
    def lock(self) -> Path:
        """The lock of the process that runs in it."""
        return self.path / ".lock"

    @property
    def failure(self) -> Path:
        """What a failed process has left."""
        return self.path / "failed.json"

    def create(self) -> None:
        """Creates the folder, with a link to the cache that all cells share."""
        (self.root / "cache").mkdir(parents=True, exist_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.path / "cache").symlink_to(Path("..", "..", "cache"))

    def state(self, rounds: int) -> State:
        """The state of the cell.

        Args:
            rounds: The rounds of a complete run.
        """
        if is_held(self.lock):
            return State.RUNNING
        if self.is_complete(rounds):
            return State.DONE
        if self.failure.is_file():
            return State.FAILED
        return State.UNFINISHED if any(self.path.glob("runs/*")) else State.MISSING

    def is_complete(self, rounds: int) -> bool:
        """Whether the run has all rounds and, with validation data, its test accuracy."""
        run = self.run()
        if run is None or int(run.summary.get("rounds", 0)) < rounds:
            return False
        return "test" in run.summary or not run.values("val/accuracy")

    def run(self) -> Run | None:
        """The run with the most rounds, of several the one with a test; None before a round.

        Raises:
            ConfigurationError: If its files are damaged.
        """
        curves = sorted(self.path.glob("runs/*/curve.csv"))
        # a process that is killed between its first curve and its checkpoint leaves a run behind
        runs = load_runs(curves) if curves else []
        return max(runs, key=lambda run: (len(run.curve), "test" in run.summary), default=None)

    def error(self) -> str | None:
        """The first line of the error of a failed cell."""
        return _read_json(self.failure).get("error")

    def has_failed_early(self) -> bool:
        """Whether wrong settings or data ended it before its first round."""
        return bool(_read_json(self.failure).get("is_early")) and self.run() is None

    def description(self) -> dict[str, Any]:
        """What cell.json says: command, version, coordinates, seed, times; empty without it."""
        return _read_json(self.path / "cell.json")


class PretrainingFolder(CellFolder):
    """The folder of a pre-training, ``ROOT/pretraining/KEY``."""

    kind = "pretraining"

    def is_complete(self, rounds: int) -> bool:
        """Whether it has ended well, and its h_0 can still be in the cache."""
        return self.description().get("status") == 0 and any(self.path.glob("cache/h0-*.pt"))


def _check(config: Mapping[str, Any]) -> None:
    """Refuses settings of a run that no sweep can resume or complete."""
    trainer = config["trainer"]
    if config["ckpt_path"] is not None:
        raise ConfigurationError("a sweep resumes its cells by itself: leave out --ckpt_path")
    if trainer["default_root_dir"] != "logs":
        raise ConfigurationError(
            "a sweep gives each cell a folder of its own: give --root in place of "
            f"trainer.default_root_dir, which is {trainer['default_root_dir']}"
        )
    if trainer["fast_dev_run"]:
        raise ConfigurationError("a sweep needs what fast_dev_run does not write: leave it out")
    if (trainer["max_epochs"] or -1) < 1:
        raise ConfigurationError(
            "a sweep needs to know the number of rounds: set trainer.max_epochs to at least 1"
        )


def _sources(config: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the files that define the user's own classes and their base classes."""
    networks = [name.partition("-")[0] for name in config["model"]["clients"] if "/" not in name]
    files: dict[str, str] = {}
    for path in {*_class_paths(config), *(name for name in networks if "." in name)}:
        module, _, name = path.rpartition(".")
        try:
            kind = getattr(import_module(module), name)
        except Exception as error:  # the module's own code runs: of any class
            raise ConfigurationError(f"{path} cannot be imported: {first_line(error)}") from error
        for base in getattr(kind, "__mro__", (kind,)):
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            package = base.__module__.partition(".")[0]
            if package in ("fedaux_pl", *sys.stdlib_module_names) or file is None:
                continue
            if not {"site-packages", "dist-packages"} & set(Path(file).parts):
                files[base.__module__] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return files


def _class_paths(config: Any) -> Iterator[str]:
    parts = config.items() if isinstance(config, Mapping) else enumerate(config)
    for name, value in parts:
        if name == "class_path":
            yield value
        elif isinstance(value, Mapping | list):
            yield from _class_paths(value)


def _without_none(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {k: _without_none(v) for k, v in content.items() if v is not None}
    return [_without_none(v) for v in content] if isinstance(content, list) else content


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged ({error}): remove it") from error
    return content
