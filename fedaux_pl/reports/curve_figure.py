"""Accuracy over the rounds: a curve for each series with the standard deviation over the seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.reports.labels import short_names
from fedaux_pl.reports.panels import (
    PANEL,
    Panel,
    add_grid,
    add_legend,
    create_panels,
    draw_reference,
    label_outer,
    mark_not_run,
    series_style,
)
from fedaux_pl.reports.values import Group, find, places, shown
from fedaux_pl.sweeps.cells import State
from fedaux_pl.sweeps.sweep_file import Sweep, as_list

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_MARKS = 6  # markers of a long curve


def draw_curves(sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any]) -> "Figure":
    """Draws the mean over the seeds of each series, with a band of one standard deviation.

    The reference is a dashed black line at its metric. Without a finished seed, the curves of the
    unfinished ones are drawn as far as they go.
    """
    from matplotlib.ticker import MaxNLocator

    series, reference = layout["series"], layout.get("reference")
    panels_of = as_list(layout.get("panels", ()))
    groups = shown(groups, sweep.axes, [series, *panels_of])
    names = short_names(sweep.axes)
    figure, panels = create_panels(places(groups, sweep.axes, panels_of), names, PANEL)
    legend: dict[str, Artist] = {}
    is_validated = False
    for panel in panels:
        add_grid(panel.axes)
        panel.axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        for index, label in enumerate(sweep.axes[series]):
            group = find(groups, {series: label, **panel.place})
            if label == reference:
                draw_reference(panel, group, label, legend)
            elif group is not None:
                _draw_curve(panel, group, index, label, legend)
                is_validated |= any(result.is_validated for result in group.results)
        if all(line.get_label() == reference for line in panel.axes.lines):
            mark_not_run(panel.axes)
    label_outer(panels, "round", f"{'validation ' if is_validated else ''}accuracy in %")
    add_legend(figure, list(legend.values()), list(legend))
    return figure


def _draw_curve(
    panel: Panel, group: Group, index: int, label: str, legend: dict[str, "Artist"]
) -> None:
    """Draws the rounds that all seeds have."""
    done = [result for result in group.results if result.state == State.DONE and result.curve]
    curves = [result.curve for result in done or group.results if result.curve]
    rounds = sorted(set.intersection(*map(set, curves))) if curves else []
    if not rounds:
        return
    values = [[curve[t] for curve in curves] for t in rounds]
    step = max(1, len(rounds) // _MARKS)
    style = series_style(index) | {
        "markersize": 4.5,
        "linewidth": 1.2,
        "markevery": (index % step, step),
    }
    [line] = panel.axes.plot(rounds, [statistics.fmean(v) for v in values], label=label, **style)
    legend.setdefault(label, line)
    if len(curves) > 1:
        bounds = [(statistics.fmean(v), statistics.stdev(v)) for v in values]
        lows, highs = [m - s for m, s in bounds], [m + s for m, s in bounds]
        color = style["color"]
        panel.axes.fill_between(rounds, lows, highs, color=color, alpha=0.18, linewidth=0)
