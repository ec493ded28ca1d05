"""The tables of a sweep: ours beside the published values, the best in bold, and all cells."""

import shlex
from collections.abc import Callable, Sequence

from fedaux_pl.reports.formats import PAPER, TableItem
from fedaux_pl.reports.values import (
    ABSENT,
    Group,
    find,
    leading,
    measure,
    metric_label,
    place_text,
    places,
    short_names,
    shown,
    value_text,
)
from fedaux_pl.sweeps.cells import CellState
from fedaux_pl.sweeps.sweep_file import Sweep, as_list, split_metric

_BOLD = "Bold: the best, and all whose standard deviation overlaps with its own."


def make_tables(sweep: Sweep, groups: Sequence[Group]) -> list[TableItem]:
    """Return the tables that a sweep file asks for.

    A table with ``best: [AXIS, ...]`` in place of columns names the labels of these axes at which
    each row is best, one with ``metrics: [COLUMN, ...]`` has a column for each of these metrics;
    the others show all cells.
    """
    tables = []
    for layout in sweep.tables:
        rows, metrics = as_list(layout["rows"]), layout.get("metrics", ())
        others = as_list(layout.get("best", layout.get("columns", ())))
        own = shown(groups, sweep.axes, rows + others)
        if metrics:
            header, texts, bold = _fill_metrics(sweep, own, rows, metrics)
        else:
            fill = _fill_best if "best" in layout else _fill
            header, texts, bold = fill(sweep, own, rows, others)
        about = describe_metric(sweep, own, metrics)
        parts = [layout.get("caption", ""), about, _BOLD if bold else ""]
        caption = " ".join(filter(None, parts))
        tables.append(TableItem(layout["name"], caption, header, texts, frozenset(bold)))
    return tables


_Filled = tuple[Sequence[Sequence[str]], list[list[str]], set[tuple[int, int]]]


def _fill(
    sweep: Sweep, groups: Sequence[Group], rows: Sequence[str], columns: Sequence[str]
) -> _Filled:
    """Return header, rows and bold entries of a table of all cells."""
    names = short_names(sweep.axes)
    row_places = places(groups, sweep.axes, rows)
    texts = [[place_text(r, names)] for r in row_places]
    # rows compete with those that differ in the last axis only
    above = [tuple(r.get(axis) for axis in rows[:-1]) for r in row_places]
    blocks = [[i for i, own in enumerate(above) if own == first] for first in dict.fromkeys(above)]
    heads: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    is_published = any(group.published for group in groups)
    # labels that the figures draw as a reference, such as Centralized, do not compete
    references = {figure["reference"] for figure in sweep.figures if figure.get("reference")}
    for column_place in places(groups, sweep.axes, columns):
        column = [find(groups, r | column_place) for r in row_places]
        labels = [value_text(names[a], label) for a, label in column_place.items()]
        labels += [""] * (len(columns) - len(labels))
        name = split_metric(sweep.metric)[1]
        heads.append([*labels, "ours"] if is_published else labels or [name])
        competing = [
            None if group and references & {*group.coordinates.values()} else group
            for group in column
        ]
        for block in blocks:
            best = leading([competing[i] for i in block])
            bold |= {(block[i], len(heads)) for i in best}
        for text, group in zip(texts, column, strict=True):
            text.append(entry(group))
        if any(group and group.published for group in column):
            heads.append([*labels, PAPER])
            for text, group in zip(texts, column, strict=True):
                text.append((group and group.published) or ABSENT)
    first = [""] * (len(heads[0]) - 1) + [", ".join(names[axis] for axis in rows)]
    return list(zip(first, *heads, strict=True)), texts, bold


def _fill_metrics(
    sweep: Sweep, groups: Sequence[Group], rows: Sequence[str], metrics: Sequence[str]
) -> _Filled:
    """Return header, rows and bold entries of a table with a column for each metric."""
    over = split_metric(sweep.metric)[0]
    parts = [_fill(sweep, measure(groups, f"{over} {name}"), rows, ()) for name in metrics]
    header, first, _ = parts[0]
    texts = [[row[0], *(own[i][1] for _, own, _ in parts)] for i, row in enumerate(first)]
    bold = {(i, column) for column, (*_, own) in enumerate(parts, 1) for i, _ in own}
    return [[header[-1][0], *metrics]], texts, bold


def _fill_best(
    sweep: Sweep, groups: Sequence[Group], rows: Sequence[str], best: Sequence[str]
) -> _Filled:
    """Return the labels of the best cell of each row, and of the best published one: Tab. 8."""
    names = short_names(sweep.axes)
    is_published = any(group.published for group in groups)
    texts = []
    for place in places(groups, sweep.axes, rows):
        inside = [group for group in groups if group.is_at(place)]
        means = [(group.mean, group) for group in inside]
        text = [place_text(place, names), *_best(means, best, entry)]
        if is_published:
            means = [(group.published_mean, group) for group in inside]
            text += _best(means, best, lambda group: group.published)
        texts.append(text)
    first = ", ".join(names[axis] for axis in rows)
    name = split_metric(sweep.metric)[1]
    header = [[first, *[*(names[axis] for axis in best), name] * (1 + is_published)]]
    if is_published:
        width = len(best) + 1
        header.insert(0, ["", *["ours"] * width, *[PAPER] * width])
    return header, texts, set()


def _best(
    means: Sequence[tuple[float | None, Group]],
    axes: Sequence[str],
    describe: Callable[[Group], str],
) -> list[str]:
    """Return the labels of the group with the best mean, and its description."""
    known = [(mean, group) for mean, group in means if mean is not None]
    if not known:
        return [ABSENT] * (len(axes) + 1)
    group = max(known, key=lambda pair: -pair[0] if pair[1].is_lower_better else pair[0])[1]
    return [*(group.coordinates.get(axis, ABSENT) for axis in axes), describe(group)]


def entry(group: Group | None) -> str:
    """Return the text of a group: ``61.4 ± 0.8 (3)``, ``61.4 (1)``, ``(3/100 rounds)``, a gap."""
    if group is None:
        return ABSENT
    if group.mean is not None:
        spread = "" if group.std is None else f" ± {group.std:.1f}"
        return f"{group.mean:.1f}{spread} ({len(group.accuracies)})"
    idle = (CellState.MISSING, CellState.DONE)  # done, but without this metric
    begun = [result for result in group.results if result.state not in idle]
    if not begun:
        return ABSENT
    if all(result.state == CellState.FAILED for result in begun):
        return "failed"
    furthest = max(begun, key=lambda result: result.rounds)
    return f"({furthest.rounds}/{furthest.cell.rounds} rounds)"


def describe_metric(sweep: Sweep, groups: Sequence[Group], metrics: Sequence[str] = ()) -> str:
    """Return what the numbers of a table are, in one sentence."""
    results = [result for group in groups for result in group.results]
    over, what = split_metric(sweep.metric)[0], f"Test {metric_label(sweep.metric)}"
    if metrics:
        are_shares = all("accuracy" in name for name in metrics)
        what = "Test accuracies in %" if are_shares else "Test metrics x 100"
    text = f"{what}, {over} over the rounds"
    if any(result.is_validated for result in results):
        text = f"{what} of the round that is best on the validation data"
        if not all(result.is_validated for result in results if result.curve):
            text += f" ({over} over the rounds where there are none)"
    text += ": mean ± standard deviation (number of seeds)"
    is_published = any(group.published for group in groups)
    return f"{text}; paper: {sweep.published['source']}." if is_published else f"{text}."


def cells_table(sweep: Sweep, groups: Sequence[Group]) -> TableItem:
    """Return all cells with what made them: cells.csv and the end of the page."""
    name = split_metric(sweep.metric)[1]
    header = [*sweep.axes, "seed", "state", "rounds", name, "published", "version", "command"]
    rows = []
    for group in groups:
        for result in group.results:
            cell, made = result.cell, result.description
            accuracy = "" if result.accuracy is None else f"{result.accuracy:.2f}"
            about = [cell.seed, result.state, result.rounds, accuracy, group.published]
            command = made.get("command") or shlex.join(["fedaux-pl", "fit", *cell.args])
            labels = [cell.coordinates.get(axis, "") for axis in sweep.axes]
            rows.append([*labels, *map(str, about), str(made.get("version", "")), str(command)])
    return TableItem("cells", f"All cells; {metric_label(sweep.metric)}.", [header], rows)
