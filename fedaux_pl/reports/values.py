"""What the cells of a sweep have measured, grouped over the seeds, and how places are written."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedaux_pl.sweeps.cells import Cell, CellState
from fedaux_pl.sweeps.sweep_file import Sweep, split_metric

ABSENT = "\N{EN DASH}"
"""What stands in the place of a missing value."""
_WORDS = ("true", "false", "inf", "null")  # labels that say nothing without their axis


@dataclass(frozen=True)
class Result:
    """What one cell has measured so far; accuracies are in percent, other metrics times 100.

    With validation data the curve is theirs, and ``accuracy`` the one on the test data of the round
    that is best on the validation data.
    """

    cell: Cell
    state: CellState
    rounds: int = 0  # that are done
    accuracy: float | None = None  # the metric of the sweep; None before the end, or without it
    curve: Mapping[int, float] = field(default_factory=dict)  # the same by round
    is_validated: bool = False
    is_lower_better: bool = False


@dataclass(frozen=True)
class Group:
    """The cells that differ in their seeds only; without results, a place where there are none."""

    coordinates: Mapping[str, str] = field(default_factory=dict)
    results: Sequence[Result] = ()  # one for each seed
    published: str = ""  # the published value as it is written, if there is one

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each finished cell in percent."""
        return [result.accuracy for result in self.results if result.accuracy is not None]

    @property
    def mean(self) -> float:
        """The mean over the finished seeds; NaN without one."""
        return statistics.fmean(self.accuracies) if self.accuracies else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the sample (n - 1); NaN for fewer than two seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else math.nan

    @property
    def is_lower_better(self) -> bool:
        """Whether a lower value of the metric is better."""
        return any(result.is_lower_better for result in self.results)

    @property
    def published_mean(self) -> float:
        """The published value as a number, without its spread; NaN if there is none."""
        return number(self.published.split("±")[0].strip().removesuffix("%"))

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Return whether the cells are there; an axis that they lack matches every label."""
        return all(self.coordinates.get(axis, label) == label for axis, label in place.items())


def collect(sweep: Sweep, cells: Sequence[Cell]) -> list[Group]:
    """Read what the resolved cells of a sweep have left; return them in the order of the file."""
    groups: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for cell in cells:
        place = tuple(sorted(cell.coordinates.items()))
        groups.setdefault(place, []).append(_read(sweep.metric, cell))
    found = [(results[0].cell.coordinates, results) for results in groups.values()]
    return [Group(place, results, sweep.published_value(place)) for place, results in found]


def measure(groups: Sequence[Group], metric: str) -> list[Group]:
    """Read another metric of the same cells, such as "last f1"; nothing is published of it."""
    return [Group(g.coordinates, [_read(metric, r.cell) for r in g.results]) for g in groups]


def metric_label(metric: str) -> str:
    """Return the name of a sweep's metric with its unit.

    Examples:
        >>> metric_label("best"), metric_label("last f1"), metric_label("last client_auroc/north")
        ('accuracy in %', 'f1 x 100', 'client_auroc/north x 100')
    """
    column = split_metric(metric)[1]
    return f"{column} {'in %' if 'accuracy' in column else 'x 100'}"


def _read(metric: str, cell: Cell) -> Result:
    state, run = cell.state, cell.load_run()
    (over, column), is_validated = split_metric(metric), bool(run.values("val/accuracy"))
    is_lower, prefix = run.is_lower_better(column), "val/" * is_validated
    curve = {t: 100 * value for t, value in run.values(prefix + column).items()}
    accuracy = None
    if is_validated:  # the best round on test data would be chosen by test data
        tested = run.summary.get("test", {}).get(column)
        accuracy = None if tested is None else 100 * float(tested)
    elif curve:
        best = min if is_lower else max
        accuracy = best(curve.values()) if over == "best" else curve[max(curve)]
    accuracy = accuracy if state == CellState.DONE else None
    rounds = int(run.curve[-1]["round"]) if run.curve else 0
    return Result(cell, state, rounds, accuracy, curve, is_validated, is_lower)


def shown(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[Group]:
    """Return the groups that belong into a table or figure of the chosen axes.

    Those that have all of these axes, and those that have no other axis to differ in (a reference
    without alpha), but not those of a grid of other axes.
    """
    varied = {axis for axis, labels in axes.items() if len(labels) > 1}
    return [
        group
        for group in groups
        if set(chosen) <= set(group.coordinates) or varied & set(group.coordinates) <= set(chosen)
    ]


def find(groups: Sequence[Group], place: Mapping[str, str]) -> Group:
    """Return the group at a place; of several the one with most coordinates, else an empty one."""
    found = [group for group in groups if group.is_at(place)]
    return max(found, key=lambda group: len(group.coordinates), default=Group())


def leading(groups: Sequence[Group]) -> list[int]:
    """Return the positions of the best mean, and of those whose band mean ± std overlaps its band.

    Numbers are compared as they are printed; one seed has no spread. Without a second mean there
    is nothing to compare.
    """
    bands = {}
    for i, group in enumerate(groups):
        if group.accuracies:
            mean = round(-group.mean if group.is_lower_better else group.mean, 1)
            bands[i] = mean, 0.0 if math.isnan(group.std) else round(group.std, 1)
    mean, std = max(bands.values(), default=(0.0, 0.0))
    overlapping = [i for i, (m, s) in bands.items() if round(m + s - (mean - std), 1) >= 0]
    return overlapping if len(bands) > 1 else []


def places(
    groups: Sequence[Group], axes: Mapping[str, Sequence[str]], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Return the combinations of labels that occur on the chosen axes, in the order of the file.

    Cells that lack an axis (a reference without alpha) belong to every combination, and make none
    of their own if others have it.
    """
    found = [{a: g.coordinates[a] for a in chosen if a in g.coordinates} for g in groups]
    distinct = [place for i, place in enumerate(found) if place not in found[:i]]
    largest = [p for p in distinct if not any(p.items() < other.items() for other in distinct)]
    return sorted(largest, key=lambda p: [axes[a].index(p[a]) if a in p else -1 for a in chosen])


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
    texts = []
    for axis, label in place.items():
        says_itself = math.isnan(number(label)) and label.lower() not in _WORDS
        texts.append(label if says_itself else f"{names[axis]} = {label}")
    return ", ".join(texts) or "all"
