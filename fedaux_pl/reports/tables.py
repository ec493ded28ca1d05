"""The tables of a sweep: ours beside the published values, the best in bold, and all cells."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaux_pl.reports.formats import PAPER
from fedaux_pl.reports.items import TableItem
from fedaux_pl.reports.labels import place_text, short_names, value_text
from fedaux_pl.reports.values import Group, describe_metric, find, leading, places, shown
from fedaux_pl.sweeps.cells import State
from fedaux_pl.sweeps.sweep_file import Sweep, as_list

ABSENT = "\N{EN DASH}"
_BOLD = "Bold: the best, and all whose standard deviation overlaps with its own."


def make_tables(sweep: Sweep, groups: Sequence[Group]) -> list[TableItem]:
    """The tables that a sweep file asks for.

    A table with ``best: [AXIS, ...]`` in place of columns names the labels of these axes at which
    each row is best; the others show all cells.
    """
    return [
        (_best_table if "best" in layout else _table)(sweep, groups, layout)
        for layout in sweep.tables
    ]


def _table(sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any]) -> TableItem:
    names = short_names(sweep.axes)
    rows, columns = as_list(layout["rows"]), as_list(layout.get("columns", ()))
    groups = shown(groups, sweep.axes, rows + columns)
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
        heads.append([*labels, "ours"] if is_published else labels or ["accuracy"])
        for block in blocks:
            competing = [_unless(references, column[i]) for i in block]
            bold |= {(block[i], len(heads)) for i in leading(competing)}
        for text, group in zip(texts, column, strict=True):
            text.append(entry(group))
        if any(group and group.published for group in column):
            heads.append([*labels, PAPER])
            for text, group in zip(texts, column, strict=True):
                text.append((group and group.published) or ABSENT)
    first = [""] * (len(heads[0]) - 1) + [", ".join(names[axis] for axis in rows)]
    source = sweep.published.get("source", "") if is_published else ""
    metric = describe_metric(sweep.metric, groups, source)
    return TableItem(
        name=layout["name"],
        caption=" ".join(filter(None, [layout.get("caption", ""), metric, _BOLD if bold else ""])),
        header=list(zip(first, *heads, strict=True)),
        rows=texts,
        bold=frozenset(bold),
    )


def _unless(references: set[str], group: Group | None) -> Group | None:
    return None if group and references & set(group.coordinates.values()) else group


def _best_table(sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any]) -> TableItem:
    """The labels of the best cell of each row, and of the best published one, as in Tab. 8."""
    names = short_names(sweep.axes)
    rows, best = as_list(layout["rows"]), as_list(layout["best"])
    groups = shown(groups, sweep.axes, rows + best)
    is_published = any(group.published for group in groups)
    texts = []
    for place in places(groups, sweep.axes, rows):
        inside = [group for group in groups if group.is_at(place)]
        ours = max(
            (group for group in inside if group.mean is not None),
            key=lambda group: group.mean or 0.0,
            default=None,
        )
        text = [place_text(place, names), *_labels(ours, best), entry(ours)]
        if is_published:
            known = [group for group in inside if group.published_mean is not None]
            top = max(known, key=lambda group: group.published_mean or 0.0, default=None)
            text += [*_labels(top, best), top.published if top else ABSENT]
        texts.append(text)
    first = ", ".join(names[axis] for axis in rows)
    header = [[first, *[*(names[axis] for axis in best), "accuracy"] * (1 + is_published)]]
    if is_published:
        width = len(best) + 1
        header.insert(0, ["", *["ours"] * width, *[PAPER] * width])
    source = sweep.published.get("source", "") if is_published else ""
    metric = describe_metric(sweep.metric, groups, source)
    caption = " ".join(filter(None, [layout.get("caption", ""), metric]))
    return TableItem(layout["name"], caption, header, texts)


def _labels(group: Group | None, axes: Sequence[str]) -> list[str]:
    return [group.coordinates.get(axis, ABSENT) if group else ABSENT for axis in axes]


def entry(group: Group | None) -> str:
    """The text of a group: ``61.4 ± 0.8 (3)``, ``61.4 (1)``, ``(3/100 rounds)`` or a gap."""
    if group is None:
        return ABSENT
    if group.mean is not None:
        spread = "" if group.std is None else f" ± {group.std:.1f}"
        return f"{group.mean:.1f}{spread} ({len(group.accuracies)})"
    return progress(group) or ABSENT


def progress(group: Group) -> str:
    """How far the cells of a group without a finished one are; empty if none has begun."""
    begun = [result for result in group.results if result.state != State.MISSING]
    if not begun:
        return ""
    furthest = max(begun, key=lambda result: result.rounds)
    if all(result.state == State.FAILED for result in begun):
        return "failed"
    return f"({furthest.rounds}/{furthest.total} rounds)"


def cells_table(sweep: Sweep, groups: Sequence[Group]) -> TableItem:
    """All cells with what made them: cells.csv and the end of the page."""
    axes = list(sweep.axes)
    header = [*axes, "seed", "state", "rounds", "accuracy", "published", "version", "command"]
    rows = [
        [
            *(result.coordinates.get(axis, "") for axis in axes),
            str(result.seed),
            str(result.state),
            str(result.rounds),
            "" if result.accuracy is None else f"{result.accuracy:.2f}",
            group.published,
            result.version,
            result.command,
        ]
        for group in groups
        for result in group.results
    ]
    return TableItem("cells", "All cells; accuracies are in %.", [header], rows)
