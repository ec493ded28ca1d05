"""What ``fedaux-pl sweep`` says about its cells: a table, counts, and the failed ones."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedaux_pl.errors import counted
from fedaux_pl.sweeps.cell_lock import holder
from fedaux_pl.sweeps.cells import CellFolder, ResolvedCell, State
from fedaux_pl.sweeps.task import Task


def table(cells: Sequence[ResolvedCell], axes: Sequence[str], root: Path) -> str:
    """A line for each cell: its coordinates, seed, state, rounds and key."""
    lines = [[*axes, "seed", "state", "rounds", "key"]]
    for cell in cells:
        labels = [cell.cell.coordinates.get(axis, "-") for axis in axes]
        folder = CellFolder(root, cell.key)
        rounds = f"{_rounds(folder)}/{cell.rounds}"
        state = str(folder.state(cell.rounds))
        lines.append([*labels, str(cell.cell.seed), state, rounds, cell.key])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def counts(tasks: Sequence[Task]) -> str:
    """How many cells are in each state, such as ``8 cells: 3 done, 1 running, 4 missing``."""
    states = Counter(task.state for task in tasks if task.verb == "fit")
    order = (State.DONE, State.RUNNING, State.UNFINISHED, State.FAILED, State.MISSING)
    parts = [f"{states[state]} {state}" for state in order if states[state]]
    return f"{counted(states.total(), 'cell')}: {', '.join(parts)}"


def details(tasks: Sequence[Task]) -> list[str]:
    """A line for each running task, then those of ``failures``."""
    lines = []
    for task in tasks:
        if task.state is State.RUNNING:
            host = holder(task.folder.lock).get("host", "another process")
            rounds = f"round {_rounds(task.folder)} of {task.rounds} " if task.rounds else ""
            lines.append(f"running: {task.name}, {rounds}on {host}, {task.folder.log}")
    return [*lines, *failures(tasks)]


def failures(tasks: Sequence[Task]) -> list[str]:
    """A line for each failed task: the first line of its error, and its log."""
    failed = [task for task in tasks if task.state is State.FAILED]
    return [f"failed: {task.name}: {problem(task)}" for task in failed]


def problem(task: Task) -> str:
    """The first line of a failed task's error, and its log if it has started."""
    log = task.folder.log
    return f"{task.folder.error()} ({log})" if log.is_file() else f"{task.folder.error()}"


def _rounds(folder: CellFolder) -> int:
    run = folder.run()
    return 0 if run is None else len(run.curve)
