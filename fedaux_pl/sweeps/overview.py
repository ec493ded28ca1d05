"""What ``fedaux-pl sweep`` says about its cells: a table, counts, failed ones, the time left."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence

from fedaux_pl.errors import counted
from fedaux_pl.sweeps.cell_lock import holder
from fedaux_pl.sweeps.cells import Cell, State


def table(cells: Sequence[Cell], axes: Sequence[str]) -> str:
    """A line for each cell: its coordinates, seed, state, rounds and key."""
    lines = [[*axes, "seed", "state", "rounds", "key"]]
    for cell in cells:
        labels = [cell.coordinates.get(axis, "-") for axis in axes]
        rounds = f"{_rounds(cell)}/{cell.rounds}"
        lines.append([*labels, str(cell.seed), str(cell.state), rounds, cell.key])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def counts(tasks: Sequence[Cell]) -> str:
    """How many cells are in each state, such as ``8 cells: 3 done, 1 running, 4 missing``."""
    states = Counter(task.state for task in tasks if task.verb == "fit")
    order = (State.DONE, State.RUNNING, State.UNFINISHED, State.FAILED, State.MISSING)
    parts = [f"{states[state]} {state}" for state in order if states[state]]
    return f"{counted(states.total(), 'cell')}: {', '.join(parts)}"


def details(tasks: Sequence[Cell]) -> list[str]:
    """A line for each running task, then those of ``failures``."""
    lines = []
    for task in tasks:
        if task.state is State.RUNNING:
            host = holder(task.lock).get("host", "another process")
            rounds = f"round {_rounds(task)} of {task.rounds} " if task.rounds else ""
            lines.append(f"running: {task.name}, {rounds}on {host}, {task.log}")
    return [*lines, *failures(tasks)]


def failures(tasks: Sequence[Cell]) -> list[str]:
    """A line for each failed task: the first line of its error, and its log."""
    failed = [task for task in tasks if task.state is State.FAILED]
    return [f"failed: {task.name}: {problem(task)}" for task in failed]


def problem(task: Cell) -> str:
    """The first line of a failed task's error, and its log if it has started."""
    return f"{task.error()} ({task.log})" if task.log.is_file() else f"{task.error()}"


def time_left(cells: Sequence[Cell], jobs: int) -> str:
    """The rounds that are left, and their time by the median of the measured rounds.

    Rounds are taken from cells with the same method, clients and data, else the same clients.

    Args:
        cells: The cells.
        jobs: How many run at a time.
    """
    measured: dict[str, list[float]] = {}
    left: list[tuple[Cell, int]] = []
    for cell in {cell.key: cell for cell in cells}.values():
        run = cell.run()
        curve = run.curve if run is not None else []
        if not cell.failure.is_file():  # a failed cell runs only by --retry
            left.append((cell, max(cell.rounds - len(curve), 0)))
        for row in curve:
            seconds = sum(v for name, v in row.items() if name.startswith("seconds/"))
            for group in _groups(cell):
                measured.setdefault(group, []).append(seconds)
    if not (rounds := sum(count for _, count in left)):
        return "no rounds are left"
    medians = {group: statistics.median(values) for group, values in measured.items()}
    total, unknown = 0.0, 0
    for cell, count in left:
        found = next((medians[group] for group in _groups(cell) if group in medians), None)
        total += count * (found or 0.0)
        unknown += found is None and count > 0
    text = f"{counted(rounds, 'round')} left"
    if unknown:
        which = f"cells without a measured round of the same clients: {unknown}"
        return f"{text}; no estimate of the time ({which}): run one of them by --select first"
    return f"{text}, about {format_seconds(total / jobs)} without pre-training"


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


def _groups(cell: Cell) -> tuple[str, str]:
    """The cells whose rounds take as long: first the closest ones."""
    model, data = cell.config["model"], cell.config["data"]
    clients = json.dumps([model["clients"], model["model_options"]], sort_keys=True)
    sources = [(data[part] or {}).get("class_path") for part in ("private", "auxiliary")]
    return json.dumps([model["algorithm"]["class_path"], clients, sources]), clients


def _rounds(cell: Cell) -> int:
    run = cell.run()
    return 0 if run is None else len(run.curve)
