"""What of a sweep is done, what is not, and the command that runs it."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedaux_pl.errors import counted
from fedaux_pl.reports.labels import place_text, short_names
from fedaux_pl.reports.values import Group, Result
from fedaux_pl.sweeps.cells import State


@dataclass(frozen=True)
class Status:
    """What of a sweep is done.

    Attributes:
        done: How many cells are done, such as ``12 of 54 cells done, 42 missing``.
        missing: Those that are not, such as ``FedAVG, alpha = 0.01: seeds 1, 2 missing``.
        command: The command that runs them; empty if there are none.
    """

    done: str
    missing: Sequence[str] = ()
    command: str = ""


def describe_status(groups: Sequence[Group], args: Sequence[str]) -> Status:
    """Says how many cells are done, and which are not.

    Args:
        groups: All cells.
        args: The arguments of ``fedaux-pl sweep`` that run them.
    """
    results = [result for group in groups for result in group.results]
    counts = Counter(result.state for result in results)
    others = [f"{counts[s]} {s}" for s in State if s != State.DONE and counts[s]]
    done = f"{counts[State.DONE]} of {counted(len(results), 'cell')} done"
    names = short_names(axis for group in groups for axis in group.coordinates)
    missing = [
        f"{place_text(group.coordinates, names)}: {'; '.join(_open(group.results))}"
        for group in groups
        if any(result.state != State.DONE for result in group.results)
    ]
    retry = ["--retry"] if counts[State.FAILED] else []
    command = shlex.join(["fedaux-pl", "sweep", *args, *retry]) if missing else ""
    return Status(", ".join([done, *others]), missing, command)


def _open(results: Iterable[Result]) -> list[str]:
    """The cells that are not done, those with the same state together."""
    seeds: dict[str, list[int]] = {}
    for result in results:
        if result.state != State.DONE:
            seeds.setdefault(_state_text(result), []).append(result.seed)
    return [
        f"{'seed' if len(found) == 1 else 'seeds'} {', '.join(map(str, found))} {text}"
        for text, found in seeds.items()
    ]


def _state_text(result: Result) -> str:
    if result.state == State.MISSING:
        return str(result.state)
    error = f": {result.error}" if result.error else ""
    return f"{result.state} ({result.rounds}/{result.total} rounds){error}"
