"""The tables of a sweep: ours beside the published values, the best in bold, and all cells."""

import itertools
import math
import shlex
from collections.abc import Sequence

import pandas as pd

from fedaux_pl.reports import values
from fedaux_pl.reports.formats import PAPER, TableItem
from fedaux_pl.reports.values import ABSENT, Group, place_text
from fedaux_pl.runs.finished_runs import short_names
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
    over, name = split_metric(sweep.metric)
    for layout in sweep.tables:
        rows = as_list(layout["rows"])
        metrics = layout.get("metrics", ())
        others = as_list(layout.get("best", layout.get("columns", ())))
        belonging = values.shown(groups, sweep.axes, rows + others)
        bold: frozenset[tuple[int, int]] = frozenset()
        if "best" in layout:
            frame = _fill_best(sweep, belonging, rows, others)
        else:
            measured = {name: belonging}
            if metrics:
                measured = {m: values.measure(belonging, f"{over} {m}") for m in metrics}
            frame, bold = _fill(sweep, measured, rows, others)
        about = describe_metric(sweep, belonging, metrics)
        caption = f"{layout.get('caption', '')} {about}".lstrip()
        if bold:
            caption += f" {_BOLD}"
        tables.append(TableItem(layout["name"], caption, frame, bold))
    return tables


def _fill(
    sweep: Sweep, measured: dict[str, list[Group]], rows: Sequence[str], columns: Sequence[str]
) -> tuple[pd.DataFrame, frozenset[tuple[int, int]]]:
    """Return a table of all cells, by the name of each metric, and its bold entries."""
    names = short_names(sweep.axes)
    first_groups = next(iter(measured.values()))  # the same places for each metric
    source = ["ours"] if any(group.published for group in first_groups) else []
    row_places = values.places(first_groups, sweep.axes, rows)
    # rows compete with those that differ in the last axis only
    upper_labels = pd.DataFrame(row_places, columns=rows[:-1]).fillna("")
    blocks = upper_labels.agg("\n".join, axis=1)
    # labels that the figures draw as a reference, such as Centralized, do not compete
    references = {figure.get("reference") for figure in sweep.figures}
    texts = [[place_text(place, names) for place in row_places]]
    heads: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    for metric, groups in measured.items():
        for place in values.places(groups, sweep.axes, columns):
            column = pd.Series([values.find(groups, row | place) for row in row_places])
            competing = column[[references.isdisjoint(g.coordinates.values()) for g in column]]
            for _, block in competing.groupby(blocks):
                bold |= {(row, len(texts)) for row in values.leading(block)}
            labels = values.label_texts(place, names)
            labels += [""] * (len(columns) - len(labels))
            texts.append([entry(group) for group in column])
            heads.append([*labels, *source] or [metric])
            if any(group.published for group in column):
                texts.append([group.published or ABSENT for group in column])
                heads.append([*labels, PAPER])
    corner = [""] * (len(heads[0]) - 1) + [", ".join(names[axis] for axis in rows)]
    header = pd.MultiIndex.from_tuples([corner, *heads])
    return pd.DataFrame(texts, index=header).T, frozenset(bold)


def _fill_best(
    sweep: Sweep, groups: Sequence[Group], rows: Sequence[str], best: Sequence[str]
) -> pd.DataFrame:
    """Return the labels of the best cell of each row, and of the best published one: Tab. 8."""
    names = short_names(sweep.axes)
    is_published = any(group.published for group in groups)
    texts = []
    for place in values.places(groups, sweep.axes, rows):
        inside = [group for group in groups if group.is_at(place)]
        text = [place_text(place, names), *_best(inside, best, "mean")]
        if is_published:
            text += _best(inside, best, "published")
        texts.append(text)
    title = ", ".join(names[axis] for axis in rows)
    heads = [*(names[axis] for axis in best), split_metric(sweep.metric)[1]]
    if not is_published:
        return pd.DataFrame(texts, columns=[title, *heads])
    sources = ["", *["ours"] * len(heads), *[PAPER] * len(heads)]
    header = pd.MultiIndex.from_arrays([sources, [title, *heads, *heads]])
    return pd.DataFrame(texts, columns=header)


def _best(groups: Sequence[Group], axes: Sequence[str], column: str) -> list[str]:
    """Return the labels of the group with the best mean or published value, and that value."""
    numbers = values.numbers(groups)[column].dropna()
    if numbers.empty:
        return [ABSENT] * (len(axes) + 1)
    is_lower_better = any(group.is_lower_better for group in groups)
    group = groups[numbers.idxmin() if is_lower_better else numbers.idxmax()]
    labels = [group.coordinates.get(axis, ABSENT) for axis in axes]
    return [*labels, entry(group) if column == "mean" else group.published]


def entry(group: Group) -> str:
    """Return the text of a group: ``61.4 ± 0.8 (3)``, ``61.4 (1)``, ``(3/100 rounds)``, a gap."""
    seeds = len(group.accuracies)
    if seeds:
        spread = f" ± {group.std:.1f}" if seeds > 1 else ""
        return f"{group.mean:.1f}{spread} ({seeds})"
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
    results = list(itertools.chain(*(group.results for group in groups)))
    is_best = split_metric(sweep.metric)[0] == "best"
    over = "best over the rounds" if is_best else "of the last round"
    what = f"Test {values.metric_label(sweep.metric)}"
    if metrics:
        are_shares = all("accuracy" in name for name in metrics)
        what = "Test accuracies in %" if are_shares else "Test metrics x 100"
    text = f"{what}, {over}"
    if is_best and any(result.is_validated for result in results):
        text = f"{what} of the round that is best on the validation data"
        if not all(result.is_validated or result.curve.empty for result in results):
            text += f" ({over} where there are none)"
    text += ": mean ± standard deviation (number of seeds)"
    if any(group.published for group in groups):
        text += f"; paper: {sweep.published['source']}"
    return f"{text}."


def cells_table(sweep: Sweep, groups: Sequence[Group]) -> TableItem:
    """Return all cells with what made them: cells.csv and the end of the page."""
    rows = []
    for group in groups:
        for result in group.results:
            cell = result.cell
            description = cell.read_description()
            fit = shlex.join(["fedaux-pl", "fit", *cell.args])
            rows.append(
                [
                    *(cell.coordinates.get(axis, "") for axis in sweep.axes),
                    str(cell.seed),
                    str(result.state),
                    str(result.rounds),
                    "" if math.isnan(result.accuracy) else f"{result.accuracy:.2f}",
                    group.published,
                    str(description.get("version", "")),
                    str(description.get("command", fit)),
                ]
            )
    _, metric = split_metric(sweep.metric)
    about = ["seed", "state", "rounds", metric, "published", "version", "command"]
    frame = pd.DataFrame(rows, columns=[*sweep.axes, *about])
    return TableItem("cells", f"All cells; {values.metric_label(sweep.metric)}.", frame)
