"""The figures that a sweep file asks for."""

from collections.abc import Sequence

from fedaux_pl.reports.curve_figure import draw_curves
from fedaux_pl.reports.heat_map import draw_heatmap
from fedaux_pl.reports.items import FigureItem
from fedaux_pl.reports.line_figure import draw_lines
from fedaux_pl.reports.values import Group
from fedaux_pl.sweeps.sweep_file import Sweep

_KINDS = {
    "lines": (
        draw_lines,
        "Means with the standard deviation over the seeds as error bars.",
    ),
    "curves": (
        draw_curves,
        "Means over the seeds, with bands of one standard deviation; runs that are not finished "
        "end early.",
    ),
    "heatmap": (
        draw_heatmap,
        "Means over the seeds; frames: the best of each panel, and all whose standard deviation "
        "overlaps with its own; gaps are gray.",
    ),
}


def make_figures(sweep: Sweep, groups: Sequence[Group]) -> list[FigureItem]:
    """The figures of a sweep with their captions."""
    items = []
    for layout in sweep.figures:
        draw, description = _KINDS[layout["kind"]]
        caption = " ".join(filter(None, [layout.get("caption", ""), description]))
        if sweep.published and layout["kind"] == "lines":
            caption += f" Hollow markers, if any, are published: {sweep.published['source']}."
        items.append(FigureItem(layout["name"], caption, draw(sweep, groups, layout)))
    return items
