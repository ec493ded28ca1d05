"""The time that a sweep still takes, by the rounds that its cells have measured."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaux_pl.errors import counted
from fedaux_pl.sweeps.cells import CellFolder, ResolvedCell


@dataclass(frozen=True)
class Estimate:
    """The work that is left.

    Attributes:
        seconds: The seconds of all cells with an estimate, one after another.
        rounds: The rounds that are left, of all cells.
        unknown: The number of cells without an estimate.
    """

    seconds: float
    rounds: int
    unknown: int

    def seconds_left(self, jobs: int) -> float | None:
        """The seconds left with some jobs at a time; None without an estimate for all cells."""
        return None if self.unknown else self.seconds / jobs

    def describe(self, jobs: int) -> str:
        """The time left with some jobs at a time, in words."""
        if not self.rounds:
            return "no rounds are left"
        rounds = f"{counted(self.rounds, 'round')} left"
        if (seconds := self.seconds_left(jobs)) is None:
            which = f"cells without a measured round of the same clients: {self.unknown}"
            return f"{rounds}; no estimate of the time ({which}): run one of them by --select first"
        return f"{rounds}, about {format_seconds(seconds)} without pre-training"


def estimate(cells: Sequence[ResolvedCell], root: Path) -> Estimate:
    """Estimates the time left: rounds left times the median of the measured rounds.

    Rounds are taken from cells with the same method, clients and data, else the same clients.

    Args:
        cells: The cells.
        root: The folder of all output.
    """
    unique = {cell.key: cell for cell in cells}
    measured: dict[str, list[float]] = {}
    left: list[tuple[ResolvedCell, int]] = []
    for cell in unique.values():
        folder = CellFolder(root, cell.key)
        run = folder.run()
        curve = run.curve if run is not None else []
        if not folder.failure.is_file():  # a failed cell runs only by --retry
            left.append((cell, max(cell.rounds - len(curve), 0)))
        for row in curve:
            seconds = sum(v for name, v in row.items() if name.startswith("seconds/"))
            for group in _groups(cell):
                measured.setdefault(group, []).append(seconds)
    medians = {group: statistics.median(values) for group, values in measured.items()}
    total, unknown = 0.0, 0
    for cell, rounds in left:
        found = next((medians[group] for group in _groups(cell) if group in medians), None)
        total += rounds * (found or 0.0)
        unknown += found is None and rounds > 0
    return Estimate(total, sum(rounds for _, rounds in left), unknown)


def format_seconds(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> format_seconds(42), format_seconds(150), format_seconds(2 * 3600 + 300)
        ('42 s', '2 min', '2 h 5 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _groups(cell: ResolvedCell) -> tuple[str, str]:
    """The cells whose rounds take as long: first the closest ones."""
    model, data = cell.config["model"], cell.config["data"]
    clients = json.dumps([model["clients"], model["model_options"]], sort_keys=True)
    sources = [(data[part] or {}).get("class_path") for part in ("private", "auxiliary")]
    return json.dumps([model["algorithm"]["class_path"], clients, sources]), clients
