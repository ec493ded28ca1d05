"""Accuracy over the labels of an axis: a line for each series, as in Fig. 3 of the paper."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures.style import MUTED
from fedaux_pl.reports.labels import short_names
from fedaux_pl.reports.panels import (
    PANEL,
    Panel,
    add_grid,
    add_legend,
    create_panels,
    draw_reference,
    label_outer,
    label_x,
    mark_not_run,
    series_style,
    x_positions,
)
from fedaux_pl.reports.values import Group, find, places, shown
from fedaux_pl.sweeps.sweep_file import Sweep, as_list

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


def draw_lines(sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any]) -> "Figure":
    """Draws means with the standard deviation over the seeds as error bars.

    Published values are hollow markers, and the reference is a dashed black line.
    """
    x, series, panels_of = layout["x"], layout["series"], as_list(layout.get("panels", ()))
    reference = layout.get("reference")
    groups = shown(groups, sweep.axes, [x, series, *panels_of])
    competing = [g for g in groups if g.coordinates.get(series) != reference]
    at, is_log = x_positions([p[x] for p in places(competing, sweep.axes, [x]) if x in p])
    names = short_names(sweep.axes)
    figure, panels = create_panels(places(groups, sweep.axes, panels_of), names, PANEL)
    legend: dict[str, Artist] = {}
    for panel in panels:
        add_grid(panel.axes)
        inside = [group for group in groups if group.is_at(panel.place)]
        for index, label in enumerate(sweep.axes[series]):
            own = [g for g in inside if g.coordinates.get(series) == label]
            found = [find(own, {x: tick}) for tick in at]
            if label == reference:
                draw_reference(panel, find(own, panel.place), label, legend)
            elif own:
                _draw_series(panel, list(at.values()), found, label, series_style(index), legend)
        shown_values = (v for g in inside if g in competing for v in (g.mean, g.published_mean))
        if all(value is None for value in shown_values):
            mark_not_run(panel.axes)
    label_x(panels, at, is_log)
    label_outer(panels, names[x], "accuracy in %")
    if published := legend.pop("published", None):  # the last entry
        legend["published"] = published
    add_legend(figure, list(legend.values()), list(legend))
    return figure


def _draw_series(
    panel: Panel,
    at: Sequence[float],
    found: Sequence[Group | None],
    label: str,
    style: dict[str, Any],
    legend: dict[str, "Artist"],
) -> None:
    """Draws one line; a missing value interrupts it."""
    from matplotlib.lines import Line2D

    means = [math.nan if g is None or g.mean is None else g.mean for g in found]
    spreads = [math.nan if g is None or g.std is None else g.std for g in found]
    [line] = panel.axes.plot(at, means, label=label, **style)
    if not all(map(math.isnan, spreads)):
        bars: dict[str, Any] = {"linestyle": "none", "elinewidth": 1.1, "capsize": 2.5}
        panel.axes.errorbar(at, means, spreads, color=style["color"], **bars)
    legend.setdefault(label, line)
    hollow: dict[str, Any] = {
        "linestyle": "none", "marker": style["marker"], "markersize": style["markersize"] + 1.5,
        "markerfacecolor": "none", "markeredgewidth": 1.2,
    }  # fmt: skip
    pairs = zip(at, found, strict=True)
    points = [(place, g.published_mean) for place, g in pairs if g and g.published_mean is not None]
    if points:
        panel.axes.plot(*zip(*points, strict=True), markeredgecolor=style["color"], **hollow)
        legend["published"] = Line2D([], [], **hollow | {"marker": "o", "markeredgecolor": MUTED})
