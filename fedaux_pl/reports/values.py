"""What the cells of a sweep have measured: read from their folders, grouped over the seeds."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedaux_pl.runs.finished_runs import Run
from fedaux_pl.sweeps.cells import Cell, State
from fedaux_pl.sweeps.sweep_file import Sweep


@dataclass(frozen=True)
class Result:
    """What one cell has measured so far; accuracies are in percent.

    Attributes:
        coordinates: The label on each axis that the cell has.
        seed: The seed.
        state: The state of its folder.
        rounds: The rounds that are done.
        total: The rounds that it should do.
        accuracy: The metric of the sweep; None before the end, or if it was not measured.
        curve: The accuracy by round, on validation data if there are any.
        is_validated: Whether the curve is that of validation data; ``accuracy`` is then the one on
            the test data of the round that is best on the validation data.
        command: The command that made the cell, or would make it.
        version: The version of the package that made it; empty if there is none.
        error: The first line of the error of a failed cell.
    """

    coordinates: Mapping[str, str]
    seed: int
    state: State
    rounds: int
    total: int
    accuracy: float | None
    curve: Mapping[int, float]
    is_validated: bool
    command: str
    version: str
    error: str = ""


@dataclass(frozen=True)
class Group:
    """The cells that differ in their seeds only.

    Attributes:
        coordinates: Their labels.
        results: One result for each seed.
        published: The published value, as text; empty if there is none.
    """

    coordinates: Mapping[str, str]
    results: Sequence[Result]
    published: str = ""

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each finished cell in percent."""
        return [result.accuracy for result in self.results if result.accuracy is not None]

    @property
    def mean(self) -> float | None:
        """The mean over the finished seeds; None without one."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample (n - 1); None for fewer than two seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def published_mean(self) -> float | None:
        """The published value as a number, without its spread."""
        try:
            return float(self.published.split("±")[0].strip().removesuffix("%"))
        except ValueError:
            return None

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Whether the cells are there; an axis that they lack matches every label."""
        return all(self.coordinates.get(axis, label) == label for axis, label in place.items())


def collect(sweep: Sweep, cells: Sequence[Cell]) -> list[Group]:
    """Reads what the cells of a sweep have left in their folders.

    Args:
        sweep: The sweep.
        cells: Its resolved cells.

    Returns:
        The groups, in the order of the file.

    Raises:
        ConfigurationError: If a file of a run is damaged.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for cell in cells:
        place = tuple(sorted(cell.coordinates.items()))
        groups.setdefault(place, []).append(_read(sweep.metric, cell))
    return [
        Group(results[0].coordinates, results, sweep.published_value(results[0].coordinates))
        for results in groups.values()
    ]


def _read(metric: str, cell: Cell) -> Result:
    state, run, made = cell.state, cell.run(), cell.description()
    curve, is_validated = _curve(run)
    return Result(
        coordinates=cell.coordinates,
        seed=cell.seed,
        state=state,
        rounds=int(run.curve[-1]["round"]) if run else 0,
        total=cell.rounds,
        accuracy=_accuracy(metric, run, curve, is_validated) if state == State.DONE else None,
        curve=curve,
        is_validated=is_validated,
        command=str(made.get("command") or shlex.join(["fedaux-pl", "fit", *cell.args])),
        version=str(made.get("version", "")),
        error=(cell.error() or "") if state == State.FAILED else "",
    )


def _curve(run: Run | None) -> tuple[dict[int, float], bool]:
    """The accuracy in percent by round, and whether it is that of validation data."""
    if run is None:
        return {}, False
    validated = run.values("val/accuracy")
    values = validated or run.values("accuracy")
    return {t: 100 * value for t, value in values.items()}, bool(validated)


def _accuracy(
    metric: str, run: Run | None, curve: Mapping[int, float], is_validated: bool
) -> float | None:
    if run is None or not curve:
        return None
    if is_validated:  # the best round on test data would be chosen by test data
        tested = run.summary.get("test", {}).get("accuracy")
        return None if tested is None else 100 * float(tested)
    return max(curve.values()) if metric == "best" else curve[max(curve)]


def shown(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[Group]:
    """The groups that belong into a table or figure of the chosen axes.

    Those that have all of these axes, and those that have no other axis to differ in (a reference
    without alpha), but not those of a grid of other axes.
    """
    varied = {axis for axis, labels in axes.items() if len(labels) > 1}
    return [
        group
        for group in groups
        if set(chosen) <= set(group.coordinates) or varied & set(group.coordinates) <= set(chosen)
    ]


def find(groups: Sequence[Group], place: Mapping[str, str]) -> Group | None:
    """The group at a place; of several, the one with most coordinates."""
    found = [group for group in groups if group.is_at(place)]
    return max(found, key=lambda group: len(group.coordinates), default=None)


def leading(groups: Sequence[Group | None]) -> list[int]:
    """The positions of the best mean, and of those whose band mean ± std overlaps with its band.

    Numbers are compared as they are printed; one seed has no spread. Without a second mean there
    is nothing to compare.
    """
    bands = {
        i: (round(group.mean, 1), round(group.std or 0.0, 1))
        for i, group in enumerate(groups)
        if group is not None and group.mean is not None
    }
    mean, std = max(bands.values(), default=(0.0, 0.0))
    overlapping = [i for i, (m, s) in bands.items() if round(m + s - (mean - std), 1) >= 0]
    return overlapping if len(bands) > 1 else []


def places(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """The combinations of labels that occur on some axes, in the order of the file.

    Cells that lack an axis (a reference without alpha) belong to every combination, and make none
    of their own if others have it.

    Args:
        groups: The groups.
        axes: All labels of each axis.
        chosen: The axes that are combined.
    """
    found = [{a: g.coordinates[a] for a in chosen if a in g.coordinates} for g in groups]
    distinct = [place for i, place in enumerate(found) if place not in found[:i]]
    largest = [p for p in distinct if not any(p.items() < other.items() for other in distinct)]
    return sorted(largest, key=lambda p: [axes[a].index(p[a]) if a in p else -1 for a in chosen])


def describe_metric(metric: str, groups: Sequence[Group], source: str = "") -> str:
    """What the numbers of a report are, in one sentence.

    Args:
        metric: ``best`` or ``last``.
        groups: The groups.
        source: Where the published numbers are from; empty if there are none.
    """
    results = [result for group in groups for result in group.results]
    text = f"Test accuracy in %, {metric} over the rounds"
    if any(result.is_validated for result in results):
        text = "Test accuracy in % of the round that is best on the validation data"
        if not all(result.is_validated for result in results if result.curve):
            text += f" ({metric} over the rounds where there are none)"
    text += ": mean ± standard deviation (number of seeds)"
    return f"{text}; paper: {source}." if source else f"{text}."
