"""A cell of a sweep: a run of ``fedaux-pl fit`` in a folder of its own."""

import contextlib
import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from fedaux_pl._version import __version__
from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.files import write_json_atomically
from fedaux_pl.runs.finished_runs import Run, load_runs
from fedaux_pl.sweeps.cell_lock import is_held

# Options that change where and how a run happens, but not its result, up to rounding.
_WITHOUT_EFFECT = (
    "accelerator",
    "strategy",
    "devices",
    "num_nodes",
    "default_root_dir",
    "logger",
    "profiler",
    "log_every_n_steps",
    "num_sanity_val_steps",
    "enable_progress_bar",
    "enable_model_summary",
    "enable_checkpointing",
    "enable_autolog_hparams",
    "model_registry",
    "detect_anomaly",
    "use_distributed_sampler",
)

_BAR_FROM = 50  # resolving more cells than this shows a progress bar


class CellState(StrEnum):
    """The state of a cell, as its folder shows it."""

    MISSING = "missing"
    RUNNING = "running"
    UNFINISHED = "unfinished"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Cell:
    """A run of ``fedaux-pl fit`` in ``ROOT/cells/KEY``; all cells share ``ROOT/cache``."""

    coordinates: Mapping[str, str]  # the label of each axis
    seed: int
    args: tuple[str, ...]  # the options of fit, without those of the folder
    # The following are set by resolve.
    root: Path = Path("logs")  # the folder of all output
    key: str = ""  # 12 hex digits of the hash of the settings
    rounds: int = 0  # of a complete run
    config: Mapping[str, Any] = field(default_factory=dict)  # all settings; empty in a worker

    @property
    def name(self) -> str:
        """Its coordinates and seed, for messages."""
        labels = [f"{axis}={label}" for axis, label in self.coordinates.items()]
        return " ".join([*labels, f"seed={self.seed}"])

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.root / "cells" / self.key

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

    @property
    def command(self) -> list[str]:
        """The command line of ``fedaux-pl``."""
        folder = ["--trainer.default_root_dir", str(self.path)]
        return ["fit", *self.args, *folder, "--ckpt_path", "last"]

    @property
    def shell_command(self) -> str:
        """The command line for a shell."""
        return shlex.join(["fedaux-pl", *self.command])

    def as_json(self) -> str:
        """Return the cell as the argument of a worker."""
        return json.dumps(asdict(replace(self, config={})), default=str)

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        """Return the cell that ``as_json`` wrote, without its config."""
        cell = cls(**json.loads(text))
        return replace(cell, root=Path(cell.root), args=tuple(cell.args))

    def create(self) -> None:
        """Create the folder, with a link to the cache that all cells share."""
        (self.root / "cache").mkdir(parents=True, exist_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.path / "cache").symlink_to(Path("..", "..", "cache"))

    def write_description(self, **more: Any) -> None:
        """Write cell.json: command, version, coordinates, seed and ``more``; other entries stay."""
        self.create()
        about = {
            "command": self.shell_command,
            "version": __version__,
            "coordinates": dict(self.coordinates),
            "seed": self.seed,
        }
        write_json_atomically(self.path / "cell.json", self.read_description() | about | more)

    def read_description(self) -> dict[str, Any]:
        """Return cell.json: command, version, coordinates, seed, times; empty without it."""
        return _read_json(self.path / "cell.json")

    def mark_failed(self, error: str, **about: Any) -> None:
        """Mark it as failed, with the first line of the error."""
        write_json_atomically(self.failure, {"error": error, **about})

    def read_failure(self) -> dict[str, Any]:
        """Return failed.json: ``error`` and what else ``mark_failed`` was given."""
        return _read_json(self.failure)

    def problem(self) -> str:
        """Return the first line of a failed cell's error, and its log if it has started."""
        error = self.read_failure().get("error")
        return f"{error} ({self.log})" if self.log.is_file() else f"{error}"

    @property
    def state(self) -> CellState:
        """Its state on disk."""
        if is_held(self.lock):
            return CellState.RUNNING
        if self.is_complete():
            return CellState.DONE
        if self.failure.is_file():
            return CellState.FAILED
        return CellState.UNFINISHED if any(self.path.glob("runs/*")) else CellState.MISSING

    def is_complete(self) -> bool:
        """Return whether the run has all rounds and, with validation data, both of its tests."""
        run = self.load_run()
        tests = {"test", "last_test"}
        is_tested = run.summary.keys() >= tests or run.values("val/accuracy").empty
        return is_tested and int(run.summary.get("rounds", 0)) >= self.rounds

    def load_run(self) -> Run:
        """Return the run with the most rounds, among equals one with a test; else an empty one."""
        curves = sorted(self.path.glob("runs/*/curve.csv"))
        # several runs: a process killed between its first curve and its checkpoint leaves one
        runs = [*load_runs(curves), Run()]
        return max(runs, key=lambda run: (len(run.curve), "test" in run.summary))


def resolve(cells: Sequence[Cell], root: Path = Path("logs"), *, check: bool = False) -> list[Cell]:
    """Parse the command lines of cells, which runs nothing; return them with settings and keys.

    ``root`` is the folder of all output. With ``check``, models and data are created, so that
    values are refused that a run would refuse.
    """
    # torch and Lightning, which take seconds to import, are needed for nothing else here
    from fedaux_pl.callbacks.progress import Bar
    from fedaux_pl.runs.parser import ConfigResolver
    from fedaux_pl.runs.shared_settings import SharedSettings

    resolver = ConfigResolver()
    shared = SharedSettings(resolver)
    resolved = []
    disable = None if len(cells) > _BAR_FROM else True  # None: tqdm shows it on terminals only
    for cell in Bar(iterable=cells, desc="reading cells", leave=False, disable=disable):
        try:
            config = shared.resolve(cell.args)
            if check:
                resolver.check(config)
            _check_resumable(config)
            key = _config_key(config)
        except ConfigurationError as error:
            # clarify leaves messages of unknown form as they are: several lines
            problem = " ".join(str(error).split())
            raise ConfigurationError(f"the cell {cell.name}: {problem}") from error
        rounds = int(config["trainer"]["max_epochs"])
        resolved.append(replace(cell, root=root, key=key, rounds=rounds, config=config))
    return resolved


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without repetitions: the first of those with the same key."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.key, cell)
    return list(first.values())


def _config_key(config: Mapping[str, Any]) -> str:
    """Return the name of the folder of a run with these settings.

    Left out: settings that do not change the result, and unset ones, so that a new option of the
    Trainer changes no key. The source files of classes outside of installed packages are part of
    it, so that a method that was edited runs again.
    """
    trainer = {k: v for k, v in config["trainer"].items() if k not in _WITHOUT_EFFECT}
    model = {k: v for k, v in config["model"].items() if k != "acceleration"}
    content = {**config, "model": model, "trainer": trainer, "sources": _sources(config) or None}
    text = json.dumps(_without_none(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_resumable(config: Mapping[str, Any]) -> None:
    """Refuse settings of a run that no sweep can resume or complete."""
    trainer = config["trainer"]
    problem = ""
    if config["ckpt_path"] is not None:
        problem = "resumes its cells by itself: leave out --ckpt_path"
    elif trainer["default_root_dir"] != "logs":
        given = f"trainer.default_root_dir, which is {trainer['default_root_dir']}"
        problem = f"gives each cell a folder of its own: give --root in place of {given}"
    elif trainer["fast_dev_run"]:
        problem = "needs what fast_dev_run does not write: leave it out"
    elif (trainer["max_epochs"] or -1) < 1:
        problem = "needs to know the number of rounds: set trainer.max_epochs to at least 1"
    if problem:
        raise ConfigurationError(f"a sweep {problem}")


def _sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the files that define the user's own classes and their base classes."""
    from fedaux_pl.models import module_of  # imports torch, as in ``resolve``

    # clients whose architecture is a class path: my_package.MyNet, or my_package.MyNet-suffix
    clients = config["model"]["clients"]
    networks = [name.partition("-")[0] for name in clients if module_of(name)]
    files: dict[str, str] = {}
    for path in {*_class_paths(config), *networks}:
        module, _, name = path.rpartition(".")
        try:
            kind = getattr(import_module(module), name)
        except Exception as error:  # the import runs the user's code, which can raise anything
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
    entries = config.items() if isinstance(config, Mapping) else enumerate(config)
    for name, value in entries:
        if name == "class_path":
            yield value
        elif isinstance(value, Mapping | list):
            yield from _class_paths(value)


def _without_none(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {k: _without_none(v) for k, v in content.items() if v is not None}
    if isinstance(content, list):
        return [_without_none(entry) for entry in content]
    return content


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigurationError(f"{path} is damaged ({error}): remove it") from error
