"""The tables of a sweep: ours beside the published values, the best in bold, and all cells."""

import math
import shlex
from collections.abc import Callable, Sequence

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
        rows, metrics = as_list(layout["rows"]), layout.get("metrics", ())
        others = as_list(layout.get("best", layout.get("columns", ())))
        own = values.shown(groups, sweep.axes, rows + others)
        if "best" in layout:
            header, texts, bold = _fill_best(sweep, own, rows, others)
        else:
            measured = {metric: values.measure(own, f"{over} {metric}") for metric in metrics}
            header, texts, bold = _fill(sweep, measured or {name: own}, rows, others)
        about = describe_metric(sweep, own, metrics)
        parts = [layout.get("caption", ""), about, _BOLD if bold else ""]
        caption = " ".join(filter(None, parts))
        tables.append(TableItem(layout["name"], caption, header, texts, frozenset(bold)))
    return tables


_Filled = tuple[Sequence[Sequence[str]], list[list[str]], set[tuple[int, int]]]


def _fill(
    sweep: Sweep, measured: dict[str, list[Group]], rows: Sequence[str], columns: Sequence[str]
) -> _Filled:
    """Return header, rows and bold entries of a table of all cells, by the name of each metric."""
    names = short_names(sweep.axes)
    own = next(iter(measured.values()))  # the same places for each metric
    row_places = values.places(own, sweep.axes, rows)
    texts = [[place_text(r, names)] for r in row_places]
    # rows compete with those that differ in the last axis only
    above = [tuple(r.get(axis) for axis in rows[:-1]) for r in row_places]
    blocks = [[i for i, a in enumerate(above) if a == first] for first in dict.fromkeys(above)]
    heads: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    is_published = any(group.published for group in own)
    # labels that the figures draw as a reference, such as Centralized, do not compete
    references = {figure["reference"] for figure in sweep.figures if figure.get("reference")}
    for metric, groups in measured.items():
        for place in values.places(groups, sweep.axes, columns):
            column = [values.find(groups, r | place) for r in row_places]
            labels = [place_text({axis: place[axis]}, names) for axis in place]
            labels += [""] * (len(columns) - len(labels))
            heads.append([*labels, "ours"] if is_published else labels or [metric])
            competing = [
                Group() if references & {*group.coordinates.values()} else group for group in column
            ]
            for block in blocks:
                best = values.leading([competing[i] for i in block])
                bold |= {(block[i], len(heads)) for i in best}
            for text, group in zip(texts, column, strict=True):
                text.append(entry(group))
            if any(group.published for group in column):
                heads.append([*labels, PAPER])
                for text, group in zip(texts, column, strict=True):
                    text.append(group.published or ABSENT)
    first = [""] * (len(heads[0]) - 1) + [", ".join(names[axis] for axis in rows)]
    return list(zip(first, *heads, strict=True)), texts, bold


def _fill_best(
    sweep: Sweep, groups: Sequence[Group], rows: Sequence[str], best: Sequence[str]
) -> _Filled:
    """Return the labels of the best cell of each row, and of the best published one: Tab. 8."""
    names = short_names(sweep.axes)
    is_published = any(group.published for group in groups)
    texts = []
    for place in values.places(groups, sweep.axes, rows):
        inside = [group for group in groups if group.is_at(place)]
        text = [place_text(place, names), *_best(inside, best, lambda group: group.mean, entry)]
        if is_published:
            text += _best(inside, best, lambda g: g.published_mean, lambda g: g.published)
        texts.append(text)
    columns = [*(names[axis] for axis in best), split_metric(sweep.metric)[1]]
    header = [[", ".join(names[axis] for axis in rows), *columns * (1 + is_published)]]
    if is_published:
        header.insert(0, ["", *["ours"] * len(columns), *[PAPER] * len(columns)])
    return header, texts, set()


def _best(
    groups: Sequence[Group],
    axes: Sequence[str],
    value: Callable[[Group], float],
    describe: Callable[[Group], str],
) -> list[str]:
    """Return the labels of the group with the best value, and its description."""
    known = [group for group in groups if not math.isnan(value(group))]
    if not known:
        return [ABSENT] * (len(axes) + 1)
    group = max(known, key=lambda g: -value(g) if g.is_lower_better else value(g))
    return [*(group.coordinates.get(axis, ABSENT) for axis in axes), describe(group)]


def entry(group: Group) -> str:
    """Return the text of a group: ``61.4 ± 0.8 (3)``, ``61.4 (1)``, ``(3/100 rounds)``, a gap."""
    if group.accuracies:
        spread = "" if math.isnan(group.std) else f" ± {group.std:.1f}"
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
    is_best = split_metric(sweep.metric)[0] == "best"
    over = "best over the rounds" if is_best else "of the last round"
    what = f"Test {values.metric_label(sweep.metric)}"
    if metrics:
        are_shares = all("accuracy" in name for name in metrics)
        what = "Test accuracies in %" if are_shares else "Test metrics x 100"
    text = f"{what}, {over}"
    if any(result.is_validated for result in results):
        text = f"{what} of the round that is best on the validation data"
        if not all(result.is_validated for result in results if result.curve):
            text += f" ({over} where there are none)"
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
            cell, made = result.cell, result.cell.read_description()
            accuracy = "" if result.accuracy is None else f"{result.accuracy:.2f}"
            about = [cell.seed, result.state, result.rounds, accuracy, group.published]
            command = made.get("command") or shlex.join(["fedaux-pl", "fit", *cell.args])
            labels = [cell.coordinates.get(axis, "") for axis in sweep.axes]
            rows.append([*labels, *map(str, about), str(made.get("version", "")), str(command)])
    return TableItem("cells", f"All cells; {values.metric_label(sweep.metric)}.", [header], rows)
