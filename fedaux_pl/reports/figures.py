"""The figures of a sweep: lines, curves and heat maps in panels, with one legend below them."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedaux_pl.callbacks.figures import style
from fedaux_pl.reports import values
from fedaux_pl.reports.values import Group
from fedaux_pl.runs.finished_runs import short_names
from fedaux_pl.sweeps.cells import CellState
from fedaux_pl.sweeps.sweep_file import Sweep, as_list

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "os^DvPX*<>"
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_REFERENCE: dict[str, Any] = {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.3}
_HOLLOW: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 7.0,
    "markerfacecolor": "none",
    "markeredgewidth": 1.2,
}
_HEAT = "cividis"  # the same order in every color vision and in gray
_MOST_COLUMNS = 4
_PANEL = (3.2, 2.6)  # inches
_LEGEND_SIZE = 10.0
_HANDLE = 0.75  # inches of a legend's handle with its spacing
_MARKS = 6  # markers of a long curve

_CAPTIONS = {
    "lines": "Means with the standard deviation over the seeds as error bars.",
    "curves": "Means over the seeds, with bands of one standard deviation; runs that are not "
    "finished end early.",
    "heatmap": "Means over the seeds; frames: the best of each panel, and all whose standard "
    "deviation overlaps with its own; gaps are gray.",
}


@dataclass(frozen=True)
class FigureItem:
    """A figure of a report: the stem of its files, what it shows, and matplotlib's figure."""

    name: str
    caption: str
    figure: "Figure"


def make_figures(sweep: Sweep, groups: Sequence[Group]) -> list[FigureItem]:
    """Return the figures that a sweep file asks for, with their captions."""
    items = []
    for layout in sweep.figures:
        kind = layout["kind"]
        caption = f"{layout.get('caption', '')} {_CAPTIONS[kind]}".lstrip()
        if sweep.published and kind == "lines":
            caption += f" Hollow markers, if any, are published: {sweep.published['source']}."
        draw = _draw_heatmap if kind == "heatmap" else _draw_series
        axes = [layout[role] for role in ("x", "y", "series") if role in layout]
        panels = as_list(layout.get("panels", ()))
        belonging = values.shown(groups, sweep.axes, axes + panels)
        separate = values.places(belonging, sweep.axes, panels)
        figure = draw(sweep, belonging, layout, separate)
        items.append(FigureItem(layout["name"], caption, figure))
    return items


_Panels = list[tuple[Mapping[str, str], "Axes"]]
_Places = Sequence[Mapping[str, str]]


def _draw_series(
    sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any], separate: _Places
) -> "Figure":
    """Draw means over an axis (lines) or over the rounds (curves), a style for each series.

    The reference is a dashed black line at its mean.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    x = layout.get("x")
    series = layout["series"]
    reference = layout.get("reference")
    names = short_names(sweep.axes)
    competing = [group for group in groups if group.coordinates.get(series) != reference]
    measure = values.metric_label(sweep.metric)
    if x is None and any(group.is_validated for group in competing):
        measure = f"validation {measure}"
    figure, panels = create_panels(separate, names, _PANEL, names[x] if x else "round", measure)
    along = values.places(competing, sweep.axes, [x]) if x else []
    at, is_log = x_positions([place[x] for place in along if x in place])
    legend: dict[str, Artist] = {}
    is_published = False
    for place, axes in panels:
        axes.grid(color=style.FAINT, linewidth=0.6)
        is_empty = True
        for index, label in enumerate(sweep.axes[series]):
            spot = {**place, series: label}
            group = values.find(groups, spot)
            line: Artist | None = None
            if label == reference:
                if not math.isnan(group.mean):
                    line = axes.axhline(group.mean, label=label, **_REFERENCE)
            elif x is None:
                line = _draw_curve(axes, group, index, label)
                is_empty &= line is None
            elif group.results:
                points = values.numbers([values.find(groups, {**spot, x: tick}) for tick in at])
                points.index = list(at.values())
                line = _draw_line(axes, points, index, label)
                is_published |= points["published"].notna().any()
                is_empty &= points[["mean", "published"]].isna().all(axis=None)
            if line is not None:
                legend.setdefault(label, line)
        if x is None:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if is_empty:
            _mark_not_run(axes)
    if x is not None:
        label_x(panels, at, is_log)
    if is_published:
        legend["published"] = Line2D([], [], markeredgecolor=style.MUTED, **_HOLLOW)
    _add_legend(figure, legend)
    return figure


def _draw_line(axes: "Axes", points: pd.DataFrame, index: int, label: str) -> "Artist":
    """Draw a line, which a missing value interrupts, with published values as hollow markers."""
    look = series_style(index)
    color = look["color"]
    [line] = axes.plot(points["mean"], label=label, **look)
    if points["std"].notna().any():
        axes.errorbar(
            points.index,
            points["mean"],
            points["std"],
            color=color,
            linestyle="none",
            elinewidth=1.1,
            capsize=2.5,
        )
    hollow = _HOLLOW | {"marker": look["marker"], "markersize": look["markersize"] + 1.5}
    published = points["published"].dropna()
    if not published.empty:
        axes.plot(published, markeredgecolor=color, **hollow)
    return line


def _draw_curve(axes: "Axes", group: Group, index: int, label: str) -> "Artist | None":
    """Draw the rounds that all finished seeds have; without one, all unfinished seeds."""
    begun = [result for result in group.results if not result.curve.empty]
    done = [result for result in begun if result.state == CellState.DONE]
    curves = pd.DataFrame([result.curve for result in done or begun]).T.dropna()
    if curves.empty:
        return None
    means = curves.mean(axis=1)
    stds = curves.std(axis=1)
    step = max(1, len(curves) // _MARKS)
    look = series_style(index) | {"markersize": 4.5, "linewidth": 1.2}
    [line] = axes.plot(means, label=label, markevery=(index % step, step), **look)
    if curves.shape[1] > 1:
        axes.fill_between(
            curves.index, means - stds, means + stds, color=look["color"], alpha=0.18, linewidth=0
        )
    return line


def _draw_heatmap(
    sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any], separate: _Places
) -> "Figure":
    """Draw means as colors with their numbers; all panels have the same scale."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    x = layout["x"]
    y = layout["y"]
    names = short_names(sweep.axes)
    grids = []
    for place in separate:
        inside = [group for group in groups if group.is_at(place)]
        grids.append(_grid(sweep, inside, x, y))
    rows, columns = np.max([grid.shape for grid in grids], axis=0)
    size = (0.62 * columns + 0.75, 0.42 * rows + 0.75)
    figure, panels = create_panels(separate, names, size, names[x], names[y], is_shared=False)
    means = values.numbers(groups)["mean"].dropna()
    scale = Normalize(means.min(), means.max()) if len(means) else Normalize(0.0, 1.0)
    colors = colormaps[_HEAT].with_extremes(bad=style.NO_DATA)
    for (_, axes), grid in zip(panels, grids, strict=True):
        axes.imshow(grid.map(lambda group: group.mean), colors, scale, aspect="auto")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        _write_numbers(axes, grid, scale)
        spare = (rows - len(grid)) / 2  # cells have the same height in all panels
        axes.set_ylim(len(grid) - 0.5 + spare, -0.5 - spare)
        axes.set_xticks(range(grid.shape[1]), grid.columns, parse_math=False)
        axes.set_yticks(range(len(grid)), grid.index, parse_math=False)
    if len(means):
        every = [axes for _, axes in panels]
        bar = figure.colorbar(ScalarMappable(scale, _HEAT), ax=every, aspect=40, pad=0.02)
        bar.set_label(values.metric_label(sweep.metric), fontsize=style.LABEL_SIZE, color=style.INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=style.TICK_SIZE, colors=style.INK, length=0)
    return figure


def _grid(sweep: Sweep, groups: Sequence[Group], x: str, y: str) -> pd.DataFrame:
    """Return the groups by their labels on two axes."""
    rows = values.places(groups, sweep.axes, [y])
    grid = pd.DataFrame(index=[row.get(y, values.ABSENT) for row in rows])
    for column in values.places(groups, sweep.axes, [x]):
        label = column.get(x, values.ABSENT)
        grid[label] = [values.find(groups, row | column) for row in rows]
    return grid


def _write_numbers(axes: "Axes", grid: pd.DataFrame, scale: Callable[[float], Any]) -> None:
    """Write the mean of each group, with frames around the best."""
    from matplotlib.patches import Rectangle

    cells = pd.Series(dict(np.ndenumerate(grid)))
    if values.numbers(cells)["mean"].isna().all():
        _mark_not_run(axes)
        return
    for (i, j), group in cells.items():
        text = values.ABSENT
        ink = style.MUTED
        if not math.isnan(group.mean):
            text = f"{group.mean:.1f}"
            ink = "black" if scale(group.mean) > 0.55 else "white"
        axes.text(j, i, text, ha="center", va="center", fontsize=style.TICK_SIZE, color=ink)
    for i, j in values.leading(cells):
        corner = (j - 0.46, i - 0.44)
        frame = Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=style.ORANGE, linewidth=2.5)
        axes.add_patch(frame)


def series_style(index: int) -> dict[str, Any]:
    """Return color, marker and dashes of the label at a position of its axis, for all figures."""
    marker = _MARKERS[index % len(_MARKERS)]
    return {
        "color": style.COLORS[index % len(style.COLORS)],
        "marker": marker,
        "linestyle": _DASHES[index % len(_DASHES)],  # for prints in gray
        "markersize": 7.5 if marker == "*" else 5.5,
        "linewidth": 1.6,
    }


def create_panels(
    separate: _Places,
    names: Mapping[str, str],
    size: tuple[float, float],
    x: str,
    y: str,
    is_shared: bool = True,
) -> tuple["Figure", _Panels]:
    """Create a figure with a panel for each place; the outer ones have the labels x and y.

    ``names`` are those of the axes, ``size`` is that of a panel in inches.
    """
    from matplotlib.figure import Figure

    columns = _columns(separate)
    rows = math.ceil(len(separate) / columns)
    scale = 1.0 if columns <= _MOST_COLUMNS else 0.78  # so that pages need not shrink the text
    width, height = scale * np.multiply(size, (columns, rows))
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(rows, columns, squeeze=False, sharex=is_shared, sharey=is_shared)
    look: dict[str, Any] = {"fontsize": style.LABEL_SIZE, "color": style.INK, "parse_math": False}
    for axes in grid.flat[len(separate) :]:
        axes.set_visible(False)
    panels = list(zip(separate, grid.flat, strict=False))
    for i, (place, axes) in enumerate(panels):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(style.MUTED)
        axes.tick_params(colors=style.INK, labelsize=style.TICK_SIZE, length=3, color=style.MUTED)
        axes.set_axisbelow(True)
        # a line for each axis: side by side they would reach into the next panel
        axes.set_title("\n".join(values.label_texts(place, names)), **look)
        if i % columns == 0:
            axes.set_ylabel(y, **look)
        if i + columns >= len(separate):
            axes.set_xlabel(x, **look)
            if is_shared:  # matplotlib labels the last row only
                axes.tick_params(labelbottom=True)
    return figure, panels


def _columns(separate: _Places) -> int:
    """Return the number of columns: a row for each label of the first axes, if it is filled."""
    rows = Counter(tuple(place.values())[:-1] for place in separate)
    columns = max(rows.values())
    if len(rows) > 1 and columns == min(rows.values()) and columns <= _MOST_COLUMNS + 2:
        return columns
    # 3 + 2 rather than 4 + 1
    return min(len(separate), _MOST_COLUMNS - (len(separate) == _MOST_COLUMNS + 1))


def _mark_not_run(axes: "Axes") -> None:
    axes.text(
        0.5,
        0.5,
        "not run",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=style.LABEL_SIZE,
        color=style.MUTED,
        style="italic",
    )


def _add_legend(figure: "Figure", entries: Mapping[str, "Artist"]) -> None:
    """Add one legend below all panels, in as many columns as fit."""
    if not entries:
        return
    widest = style.text_width(list(entries), _LEGEND_SIZE) + _HANDLE
    columns = max(1, int(figure.get_figwidth() / widest))
    rows = math.ceil(len(entries) / columns)
    legend = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=math.ceil(len(entries) / rows),
        frameon=False,
        fontsize=_LEGEND_SIZE,
        labelcolor=style.INK,
        handlelength=3.0,
        columnspacing=1.6,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    # the panels keep their height
    figure.set_figheight(figure.get_figheight() + 0.2 * rows + 0.15)


def x_positions(labels: Sequence[str]) -> tuple[dict[str, float], bool]:
    """Return where the labels of an axis stand, and whether the scale is logarithmic.

    Numbers stand at their values, on a logarithmic scale if they are positive and span more than a
    decade. Zero on such a scale stands a step before the smallest, and one label that is no number
    ("inf") a step after the largest. Other labels stand side by side.

    Examples:
        >>> x_positions(["0.01", "0.1", "1", "inf"])
        ({'0.01': 0.01, '0.1': 0.1, '1': 1.0, 'inf': 10.0}, True)
    """
    at = pd.Series({label: values.number(label) for label in labels}, dtype=float)
    numbers = np.unique(at.dropna())
    if len(numbers) < 2 or at.isna().sum() > 1:
        return {label: float(i) for i, label in enumerate(labels)}, False
    positive = numbers[numbers > 0]
    is_log = len(positive) > 1 and numbers[0] >= 0 and positive[-1] > 10 * positive[0]
    after = 2 * numbers[-1] - numbers[-2]
    if is_log:
        after = positive[-1] ** 2 / positive[-2]
        at = at.replace(0.0, positive[0] ** 2 / positive[1])
    return at.fillna(after).to_dict(), bool(is_log)


def label_x(panels: _Panels, at: Mapping[str, float], is_log: bool) -> None:
    """Put a tick with its label, as it is written in the file, at each place.

    Labels are rotated if two neighbors would overlap.
    """
    first = panels[0][1]
    columns = first.get_gridspec().ncols  # type: ignore[union-attr]
    width = 0.72 * first.get_figure().get_figwidth() / columns  # type: ignore[union-attr]
    look: dict[str, Any] = {"parse_math": False}
    spots = pd.Series(at, dtype=float).sort_values()
    if is_log:
        spots = np.log10(spots)
    rooms = width * spots.diff() / (spots.max() - spots.min())  # from the label before
    for left, right in itertools.pairwise(spots.index):
        if rooms[right] < style.text_width([left, right], style.TICK_SIZE) + 0.06:
            look |= {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    for _, axes in panels:
        if is_log:
            axes.set_xscale("log")
        axes.set_xticks(list(at.values()), list(at), **look)
        axes.minorticks_off()
