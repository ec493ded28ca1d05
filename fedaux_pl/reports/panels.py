"""Small multiples: panels with shared axes, styles of series, and a legend below all of them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures.style import (
    FAINT,
    INK,
    LABEL_SIZE,
    MUTED,
    SMALL_TICK_SIZE,
    TICK_SIZE,
    text_width,
)
from fedaux_pl.reports.labels import number, place_text
from fedaux_pl.reports.values import Group

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's without yellow, which is faint on white, and black, which is the reference's; and
# dark ones of Tol's, so that nine methods have nine colors
_COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A"),
    *("#332288", "#882255"),
)
_MARKERS = "os^DvPX*<>"
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_MOST_COLUMNS = 4
PANEL = (3.2, 2.6)  # inches
_LEGEND_SIZE = 10.0
_HANDLE = 0.75  # inches of a legend's handle with its spacing

_REFERENCE: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.3}


@dataclass(frozen=True)
class Panel:
    """A part of a figure.

    Attributes:
        place: Its labels.
        axes: Its axes of matplotlib.
        width: Its width in inches, with the labels of its axes.
        row: What all panels of its row have in common; empty if nothing.
        is_left: Whether it is the first of its row.
        is_bottom: Whether no panel is below it.
    """

    place: Mapping[str, str]
    axes: "Axes"
    width: float
    row: str
    is_left: bool
    is_bottom: bool


def series_style(index: int) -> dict[str, Any]:
    """Color, marker and dashes of a series; each differs, for prints in gray.

    Args:
        index: The position of its label on the axis, so that a method looks the same in all figures
            of a sweep.
    """
    return {
        "color": _COLORS[index % len(_COLORS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "markersize": 7.5 if _MARKERS[index % len(_MARKERS)] == "*" else 5.5,
        "linewidth": 1.6,
    }


def create_panels(
    places: Sequence[Mapping[str, str]],
    names: Mapping[str, str],
    size: tuple[float, float],
    is_shared: bool = True,
) -> tuple["Figure", list[Panel]]:
    """Creates a figure with a panel for each place.

    With two axes or more, the last one makes the columns if every combination is there: its labels
    are the titles of the first row, and the others stand at the left. Otherwise the panels fill
    rows one after another, each with its own title.

    Args:
        places: The labels of each panel.
        names: How the axes are written.
        size: The width and height of a panel in inches.
        is_shared: Whether all panels have the same limits and ticks.
    """
    from matplotlib.figure import Figure

    columns, is_product = _columns(places)
    rows = math.ceil(len(places) / columns)
    scale = 1.0 if columns <= _MOST_COLUMNS else 0.78  # so that pages need not shrink the text
    width, height = scale * size[0] * columns, scale * size[1] * rows
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(rows, columns, squeeze=False, sharex=is_shared, sharey=is_shared)
    panels = []
    for i, axes in enumerate(grid.flat):
        if i >= len(places):
            axes.set_visible(False)
            continue
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(MUTED)
        axes.tick_params(colors=INK, labelsize=TICK_SIZE, length=3, color=MUTED)
        axes.set_axisbelow(True)
        *above, last = places[i] or [""]
        row = place_text({a: places[i][a] for a in above}, names) if is_product else ""
        title = {last: places[i][last]} if is_product else places[i]
        if title and (i < columns or not is_product):
            text = place_text(title, names)
            axes.set_title(text, fontsize=LABEL_SIZE, color=INK, parse_math=False)
        is_bottom = i + columns >= len(places)
        if is_shared and is_bottom:  # matplotlib labels the last row only
            axes.tick_params(labelbottom=True)
        panels.append(Panel(places[i], axes, width / columns, row, i % columns == 0, is_bottom))
    return figure, panels


def _columns(places: Sequence[Mapping[str, str]]) -> tuple[int, bool]:
    """The number of columns, and whether they are the labels of the last axis."""
    if all(len(place) > 1 for place in places):
        labels = [list(place.values()) for place in places]
        last = list(dict.fromkeys(label[-1] for label in labels))
        above = list(dict.fromkeys(tuple(label[:-1]) for label in labels))
        if [[*a, b] for a in above for b in last] == labels and len(last) <= _MOST_COLUMNS + 2:
            return len(last), True
    if len(places) == _MOST_COLUMNS + 1:
        return _MOST_COLUMNS - 1, False  # 3 + 2 rather than 4 + 1
    return min(len(places), _MOST_COLUMNS), False


def label_outer(panels: Sequence[Panel], x: str, y: str) -> None:
    """Labels the axes at the left and at the bottom of the figure only."""
    style: dict[str, Any] = {"fontsize": LABEL_SIZE, "color": INK, "parse_math": False}
    for panel in panels:
        if panel.is_left:
            panel.axes.set_ylabel(f"{panel.row}\n{y}" if panel.row else y, **style)
        if panel.is_bottom:
            panel.axes.set_xlabel(x, **style)


def add_grid(axes: "Axes") -> None:
    """Draws faint lines behind the data."""
    axes.grid(color=FAINT, linewidth=0.6)


def draw_reference(
    panel: Panel, group: Group | None, label: str, legend: dict[str, "Artist"]
) -> None:
    """Draws a dashed line at the mean of a reference, such as centralized training."""
    if group is not None and group.mean is not None:
        legend.setdefault(label, panel.axes.axhline(group.mean, label=label, **_REFERENCE))


def mark_not_run(axes: "Axes") -> None:
    """Says in a panel without data that nothing was run."""
    axes.text(
        *(0.5, 0.5, "not run"), transform=axes.transAxes, ha="center", va="center",
        fontsize=LABEL_SIZE, color=MUTED, style="italic",
    )  # fmt: skip


def add_legend(figure: "Figure", handles: Sequence["Artist"], labels: Sequence[str]) -> None:
    """Adds one legend below all panels, in as many columns as fit."""
    if not handles:
        return
    widest = text_width(labels, _LEGEND_SIZE) + _HANDLE
    columns = max(1, min(len(labels), int(figure.get_figwidth() / widest)))
    rows = math.ceil(len(labels) / columns)
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows),
        frameon=False, fontsize=_LEGEND_SIZE, labelcolor=INK, handlelength=3.0, columnspacing=1.6,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    # the panels keep their height
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.15)


def x_positions(labels: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Where the labels of an axis stand, and whether the scale is logarithmic.

    Numbers stand at their values, on a logarithmic scale if they are positive and span more than a
    decade. Zero on such a scale stands a step before the smallest, and one label that is no number
    ("inf") a step after the largest. Other labels stand side by side.

    Example:
        >>> x_positions(["0.01", "0.1", "1", "inf"])
        ({'0.01': 0.01, '0.1': 0.1, '1': 1.0, 'inf': 10.0}, True)
    """
    values = {label: number(label) for label in labels}
    numbers = sorted({value for value in values.values() if value is not None})
    words = [label for label, value in values.items() if value is None]
    if len(numbers) < 2 or len(words) > 1:
        return {label: float(i) for i, label in enumerate(labels)}, False
    positive = [value for value in numbers if value > 0]
    is_log = len(positive) > 1 and numbers[0] >= 0 and positive[-1] > 10 * positive[0]
    if is_log:
        before, after = positive[0] ** 2 / positive[1], positive[-1] ** 2 / positive[-2]
    else:
        before, after = 0.0, 2 * numbers[-1] - numbers[-2]
    place = {None: after, 0.0: before}
    return {label: place.get(value, value or 0.0) for label, value in values.items()}, is_log


def label_x(panels: Sequence[Panel], places: Mapping[str, float], is_log: bool) -> None:
    """Puts a tick with its label, as it is written in the file, at each place.

    Labels that would overlap are smaller, or else rotated.
    """
    width = 0.72 * panels[0].width  # between the first and the last label
    sizes = (TICK_SIZE, SMALL_TICK_SIZE)
    size = next((size for size in sizes if _fit(places, is_log, size, width)), None)
    rotation = 0 if size else 35
    style: dict[str, Any] = {"rotation": rotation, "ha": "right" if rotation else "center"}
    style["rotation_mode"] = "anchor" if rotation else "default"
    for panel in panels:
        if is_log:
            panel.axes.set_xscale("log")
        panel.axes.set_xticks(
            list(places.values()),
            list(places),
            fontsize=size or TICK_SIZE,
            parse_math=False,
            **style,
        )
        panel.axes.minorticks_off()


def _fit(places: Mapping[str, float], is_log: bool, size: float, width: float) -> bool:
    """Whether labels of this size do not overlap within this width in inches."""
    at = {label: math.log10(x) if is_log else x for label, x in places.items()}
    labels = sorted(at, key=lambda label: at[label])
    inches = width / max(at[labels[-1]] - at[labels[0]], 1e-9) if labels else 0.0
    widths = {label: text_width([label], size) for label in labels}
    return all(
        (at[b] - at[a]) * inches > (widths[a] + widths[b]) / 2 + 0.06
        for a, b in itertools.pairwise(labels)
    )
