"""Heat maps: accuracy over two axes, the best of each panel framed, as in Fig. 13 of the paper."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures.style import INK, LABEL_SIZE, MUTED, NO_DATA, ORANGE, TICK_SIZE
from fedaux_pl.reports.labels import short_names
from fedaux_pl.reports.panels import Panel, create_panels, label_outer, mark_not_run
from fedaux_pl.reports.tables import ABSENT
from fedaux_pl.reports.values import Group, find, leading, places, shown
from fedaux_pl.sweeps.sweep_file import Sweep, as_list

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_COLORS = "cividis"  # the same order in every color vision and in gray


def draw_heatmap(sweep: Sweep, groups: Sequence[Group], layout: Mapping[str, Any]) -> "Figure":
    """Draws the means as colors with their numbers; all panels have the same scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    x, y, panels_of = layout["x"], layout["y"], as_list(layout.get("panels", ()))
    groups = shown(groups, sweep.axes, [x, y, *panels_of])
    names = short_names(sweep.axes)
    separate = places(groups, sweep.axes, panels_of)
    inside = [[group for group in groups if group.is_at(place)] for place in separate]
    rows = [places(found, sweep.axes, [y]) for found in inside]
    columns = [places(found, sweep.axes, [x]) for found in inside]
    most = max(map(len, rows))
    size = (0.62 * max(map(len, columns)) + 0.75, 0.42 * most + 0.75)
    figure, panels = create_panels(separate, names, size, is_shared=False)
    means = [group.mean for group in groups if group.mean is not None]
    scale = Normalize(min(means, default=0.0), max(means, default=1.0))
    for panel, found, below, beside in zip(panels, inside, rows, columns, strict=True):
        _draw_panel(panel, [[find(found, r | c) for c in beside] for r in below], scale)
        spare = (most - len(below)) / 2  # cells have the same height in all panels
        panel.axes.set_ylim(len(below) - 0.5 + spare, -0.5 - spare)
        ticks = [place.get(x, ABSENT) for place in beside]
        panel.axes.set_xticks(range(len(ticks)), ticks, parse_math=False)
        ticks = [place.get(y, ABSENT) for place in below]
        panel.axes.set_yticks(range(len(ticks)), ticks, parse_math=False)
    label_outer(panels, names[x], names[y])
    if means:
        bar = figure.colorbar(
            ScalarMappable(scale, _COLORS), ax=[panel.axes for panel in panels], aspect=40, pad=0.02
        )
        bar.set_label("accuracy in %", fontsize=LABEL_SIZE, color=INK)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=TICK_SIZE, colors=INK, length=0)
    return figure


def _draw_panel(panel: Panel, groups: Sequence[Sequence[Group | None]], scale: "Normalize") -> None:
    """Draws one map; a gap is gray, and the leading values are framed."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    means = [[math.nan if g is None or g.mean is None else g.mean for g in row] for row in groups]
    colors = colormaps[_COLORS].with_extremes(bad=NO_DATA)
    panel.axes.imshow(means, colors, scale, aspect="auto")
    panel.axes.spines[:].set_visible(False)
    panel.axes.tick_params(length=0)
    if all(math.isnan(value) for row in means for value in row):
        mark_not_run(panel.axes)
        return
    framed = leading([group for row in groups for group in row])
    for i, row in enumerate(means):
        for j, value in enumerate(row):
            is_gap = math.isnan(value)
            ink = MUTED if is_gap else "black" if scale(value) > 0.55 else "white"
            text = ABSENT if is_gap else f"{value:.1f}"
            panel.axes.text(j, i, text, ha="center", va="center", fontsize=TICK_SIZE, color=ink)
            if i * len(row) + j in framed:
                frame: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linewidth": 2.5}
                panel.axes.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, **frame))
