"""A task of a sweep: a run of ``fedaux-pl fit`` or ``pretrain`` in a folder of its own."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedaux_pl._version import __version__
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps.cells import CellFolder, PretrainingFolder, ResolvedCell, State, digest

# What h_0 depends on; more than that would only make a task that finds it in the cache.
_OF_H0 = {
    "model": ("pretraining", "model_options", "seed", "threads"),
    "data": ("private", "auxiliary", "negatives", "validation", "seed"),
    "trainer": ("precision",),
}


@dataclass(frozen=True)
class Task:
    """One process of a sweep.

    Attributes:
        verb: "fit" or "pretrain".
        root: The folder of all output.
        key: The name of its folder below ``root``.
        rounds: The rounds of a complete run; 0 for pre-training.
        coordinates: The labels of the cell; of the first one that needs a pre-training.
        seed: Its seed.
        args: The options of the verb, without those of the folder.
        needs: The key of the pre-training that must come before it; None without.
    """

    verb: str
    root: str
    key: str
    rounds: int
    coordinates: Mapping[str, str]
    seed: int
    args: tuple[str, ...]
    needs: str | None = None

    @property
    def name(self) -> str:
        """What it is, for messages."""
        parts = [f"{axis}={label}" for axis, label in self.coordinates.items()]
        verb = ["pre-training for"] if self.verb == "pretrain" else []
        return " ".join([*verb, *parts, f"seed={self.seed}"])

    @property
    def folder(self) -> CellFolder:
        """Its folder."""
        kind = PretrainingFolder if self.verb == "pretrain" else CellFolder
        return kind(Path(self.root), self.key)

    @property
    def command(self) -> list[str]:
        """The command line of ``fedaux-pl``."""
        last = ["--ckpt_path", "last"] if self.verb == "fit" else []
        folder = ["--trainer.default_root_dir", str(self.folder.path)]
        return [self.verb, *self.args, *folder, *last]

    @property
    def line(self) -> str:
        """The command line for a shell."""
        return shlex.join(["fedaux-pl", *self.command])

    def as_json(self) -> str:
        """The task as the argument of a worker."""
        return json.dumps(asdict(self))

    @property
    def state(self) -> State:
        """Its state on disk."""
        return self.folder.state(self.rounds)

    def prepare(self, **more: Any) -> None:
        """Creates its folder with cell.json, which describes it.

        Args:
            **more: What cell.json says besides the command, the version and the coordinates.
        """
        self.folder.create()
        about = {
            "command": self.line,
            "version": __version__,
            "coordinates": dict(self.coordinates),
            "seed": self.seed,
        }
        described = {**self.folder.description(), **about, **more}
        write_json_atomically(self.folder.path / "cell.json", described)


def plan(cells: list[ResolvedCell], root: Path) -> list[Task]:
    """The tasks of a sweep: each pre-training once, then each distinct cell.

    Args:
        cells: The cells.
        root: The folder of all output.
    """
    tasks: dict[str, Task] = {}
    pretraining: dict[str, Task] = {}
    for resolved in cells:
        cell, needs = resolved.cell, _pretraining_key(resolved)
        if needs is not None:
            task = Task("pretrain", str(root), needs, 0, cell.coordinates, cell.seed, cell.args)
            pretraining.setdefault(needs, task)
        task = Task(
            verb="fit",
            root=str(root),
            key=resolved.key,
            rounds=resolved.rounds,
            coordinates=cell.coordinates,
            seed=cell.seed,
            args=cell.args,
            needs=needs,
        )
        tasks.setdefault(resolved.key, task)
    return [*pretraining.values(), *tasks.values()]


def _pretraining_key(cell: ResolvedCell) -> str | None:
    """The key of the h_0 that a cell starts from; None if it trains none."""
    model = cell.config["model"]
    # a method of the user's without this option pre-trains in fit, once by the lock of the cache
    is_pretrained = model["algorithm"].get("init_args", {}).get("pretrained", False)
    if not is_pretrained or not model["pretraining"]["epochs"]:
        return None
    parts = {k: {n: cell.config[k][n] for n in names} for k, names in _OF_H0.items()}
    return digest({**parts, "architectures": sorted(model["clients"])})
