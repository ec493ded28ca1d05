"""What the cells of a sweep have measured, grouped over the seeds, and how places are written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedaux_pl.sweeps.cells import Cell, CellState
from fedaux_pl.sweeps.sweep_file import Sweep, split_metric

ABSENT = "\N{EN DASH}"
"""What stands in the place of a missing value."""
_WORDS = ("true", "false", "inf", "null")  # labels that say nothing without their axis


@dataclass(frozen=True, eq=False)
class Result:
    """What one cell has measured so far; accuracies are in percent, other metrics times 100.

    With validation data the curve is theirs, and ``accuracy`` the one on the test data of the last
    round or, with "best", of the round that is best on the validation data.
    """

    cell: Cell
    state: CellState
    rounds: int = 0  # that are done
    accuracy: float = math.nan  # the metric of the sweep; NaN before the end, or without it
    curve: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))  # the same by round
    is_validated: bool = False
    is_lower_better: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """The cells that differ in their seeds only; without results, a place where there are none."""

    coordinates: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[Result] = ()  # one for each seed
    published: str = ""  # the published value as it is written, if there is one

    @property
    def accuracies(self) -> pd.Series:
        """The accuracy of each finished cell in percent."""
        return pd.Series([result.accuracy for result in self.results], dtype=float).dropna()

    @property
    def mean(self) -> float:
        """The mean over the finished seeds; NaN without one."""
        return float(self.accuracies.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the sample (n - 1); NaN for fewer than two seeds."""
        return float(self.accuracies.std())

    @property
    def is_lower_better(self) -> bool:
        """Whether a lower value of the metric is better."""
        return any(result.is_lower_better for result in self.results)

    @property
    def is_validated(self) -> bool:
        """Whether a seed has validation data, whose curve it shows."""
        return any(result.is_validated for result in self.results)

    @property
    def published_mean(self) -> float:
        """The published value as a number, without its spread; NaN if there is none."""
        return number(self.published.split("±")[0].strip().removesuffix("%"))

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Return whether the cells are there; an axis that they lack matches every label."""
        return all(self.coordinates.get(axis, label) == label for axis, label in place.items())


def collect(sweep: Sweep, cells: Sequence[Cell]) -> list[Group]:
    """Read what the resolved cells of a sweep have left; return them in the order of the file."""
    results: dict[frozenset[tuple[str, str]], list[Result]] = {}
    for cell in cells:
        place = frozenset(cell.coordinates.items())
        results.setdefault(place, []).append(_read(sweep.metric, cell))
    groups = []
    for seeds in results.values():
        coordinates = seeds[0].cell.coordinates
        groups.append(Group(coordinates, seeds, sweep.published_value(coordinates)))
    return groups


def measure(groups: Sequence[Group], metric: str) -> list[Group]:
    """Read another metric of the same cells, such as "last f1"; nothing is published of it."""
    measured = []
    for group in groups:
        results = [_read(metric, result.cell) for result in group.results]
        measured.append(Group(group.coordinates, results))
    return measured


def metric_label(metric: str) -> str:
    """Return the name of a sweep's metric with its unit.

    Examples:
        >>> metric_label("best"), metric_label("last f1"), metric_label("last client_auroc/north")
        ('accuracy in %', 'f1 x 100', 'client_auroc/north x 100')
    """
    column = split_metric(metric)[1]
    return f"{column} {'in %' if 'accuracy' in column else 'x 100'}"


def _read(metric: str, cell: Cell) -> Result:
    state = cell.state
    run = cell.load_run()
    over, column = split_metric(metric)
    is_validated = not run.values("val/accuracy").empty
    is_lower_better = run.is_lower_better(column)
    curve = 100 * run.values(f"val/{column}" if is_validated else column)
    accuracy = math.nan
    if state == CellState.DONE:
        if is_validated:  # the best round on test data would be chosen by test data
            test = "test" if over == "best" else "last_test"
            accuracy = 100 * float(run.summary[test].get(column, math.nan))
        elif over == "best":
            accuracy = curve.min() if is_lower_better else curve.max()
        elif not curve.empty:
            accuracy = curve.iloc[-1]
    return Result(cell, state, run.rounds, accuracy, curve, is_validated, is_lower_better)


def shown(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[Group]:
    """Return the groups that belong into a table or figure of the chosen axes.

    Those that have all of these axes, and those that have no other axis to differ in (a reference
    without alpha), but not those of a grid of other axes.
    """
    varied = {axis for axis, labels in axes.items() if len(labels) > 1}
    others = varied.difference(chosen)
    belonging = []
    for group in groups:
        group_axes = group.coordinates.keys()
        if group_axes >= set(chosen) or others.isdisjoint(group_axes):
            belonging.append(group)
    return belonging


def find(groups: Sequence[Group], place: Mapping[str, str]) -> Group:
    """Return the group at a place; of several the one with most coordinates, else an empty one."""
    there = [group for group in groups if group.is_at(place)]
    return max(there, key=lambda group: len(group.coordinates), default=Group())


def numbers(groups: Iterable[Group]) -> pd.DataFrame:
    """Return mean, std and published value of groups, a row for each."""
    rows = [(group.mean, group.std, group.published_mean) for group in groups]
    return pd.DataFrame(rows, columns=["mean", "std", "published"], dtype=float)


def leading(groups: pd.Series) -> list[Any]:
    """Return the positions of the best mean, and of those whose band mean ± std overlaps its band.

    Numbers are compared as they are printed; one seed has no spread. Without a second mean there
    is nothing to compare.
    """
    printed = numbers(groups).map(lambda value: round(value, 1))
    is_lower_better = [group.is_lower_better for group in groups]
    means = printed["mean"].mask(is_lower_better, -printed["mean"])
    stds = printed["std"].fillna(0.0)
    if means.count() < 2:
        return []
    lowest = (means - stds)[means == means.max()].min()
    return list(groups.index[(means + stds - lowest).round(1) >= 0])


def places(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Return the combinations of labels that occur on the chosen axes, in the order of the file.

    Cells that lack an axis (a reference without alpha) belong to every combination, and make none
    of their own if others have it.
    """
    distinct: list[dict[str, str]] = []
    for group in groups:
        place = {axis: group.coordinates[axis] for axis in chosen if axis in group.coordinates}
        if place not in distinct:
            distinct.append(place)

    def is_largest(place: Mapping[str, str]) -> bool:
        return not any(place.items() < other.items() for other in distinct)

    def position(place: Mapping[str, str]) -> list[int]:
        return [axes[axis].index(place[axis]) if axis in place else -1 for axis in chosen]

    return sorted(filter(is_largest, distinct), key=position)


def number(label: str) -> float:
    """Return the finite number that a label says; NaN if it says none.

    Examples:
        >>> number("1.0e-5"), number("FedAVG"), number("inf")
        (1e-05, nan, nan)
    """
    try:
        value = float(label)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def place_text(place: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return a place in one line; a number, true or false has its axis before it.

    Examples:
        >>> place_text({"data.alpha": "0.01", "method": "FedAVG"}, {"data.alpha": "alpha"})
        'alpha = 0.01, FedAVG'
        >>> place_text({}, {})
        'all'
    """
    return ", ".join(label_texts(place, names)) or "all"


def label_texts(place: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return the texts of a place, one for each of its axes."""
    texts = []
    for axis, label in place.items():
        says_itself = math.isnan(number(label)) and label.lower() not in _WORDS
        texts.append(label if says_itself else f"{names[axis]} = {label}")
    return texts
