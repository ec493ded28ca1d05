"""The figure of each client's metrics over the rounds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (7.0, 2.8)  # inches
_GAP = 0.45


def client_lines_figure(
    rounds: Sequence[int], names: Sequence[str], curves: Mapping[str, Array]
) -> "Figure":
    """Draw each client's metrics over the rounds, with the mean over the clients.

    Of many clients the one with the worst last accuracy alone is colored and named. The curves of
    each metric are floats of shape (clients, rounds); NaN where there is no value.
    """
    shown, pitch = [style.shorten(name) for name in names], _PANEL[1] + _GAP
    first, total = next(iter(curves)), pitch * len(curves) - _GAP
    figure, whole = style.canvas(
        _PANEL[0],
        total,
        title="Metrics of each client" if len(curves) > 1 else "Accuracy of each client",
        note=f"{counted(len(names), 'client')}, each on its own "
        f"{'validation' if first.startswith('val/') else 'test'} data",
    )
    whole.set_axis_off()
    worst = int(np.nanargmin(style.to_numpy(curves[first])[:, -1]))
    for k, (metric, values) in enumerate(curves.items()):
        lower = (total - _PANEL[1] - k * pitch) / total
        axes = whole.inset_axes((0, lower, 1, _PANEL[1] / total))
        in_percent = "accuracy" in metric
        table = style.to_numpy(values) * (100 if in_percent else 1)
        _draw_lines(axes, rounds, shown, table, worst)
        axes.set_ylabel(metric.removeprefix("val/").replace("_", " ") + " in %" * in_percent)
        if k == 0:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1.03), **style.LEGEND)
    axes.set_xlabel("round")
    return figure


def _draw_lines(
    axes: "Axes", rounds: Sequence[int], names: Sequence[str], table: NDArray[Any], worst: int
) -> None:
    from matplotlib.ticker import MaxNLocator

    few, mark = len(names) <= len(style.COLORS), "o" if len(rounds) <= 20 else ""
    for i, (name, line) in enumerate(zip(names, table, strict=True)):
        look: dict[str, Any] = {"color": style.NO_DATA, "linewidth": 0.8}
        if few or i == worst:
            look = {"color": style.COLORS[i] if few else style.ORANGE, "linewidth": 1.6}
            look |= {"label": name, "marker": mark, "markersize": 4, "zorder": 3}
        axes.plot(rounds, line, **look)
    look = {"color": style.INK, "linewidth": 2.4, "linestyle": (0, (4, 2)), "zorder": 4}
    mean = np.ma.masked_invalid(table).mean(axis=0)
    axes.plot(rounds, mean, label="mean", marker=mark, markersize=3, **look)
    axes.grid(color=style.FAINT, linewidth=0.8)
    style.plain_axes(axes)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_xlim(rounds[0] - 0.2, rounds[-1] + 0.2)
