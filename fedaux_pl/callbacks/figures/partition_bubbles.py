"""A figure of the number of samples of each class that each client holds."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def partition_figure(
    counts: Array, classes: Sequence[str], client_names: Sequence[str] | None = None
) -> "Figure":
    """Draw how many samples of each class each client holds, as a grid of bubbles.

    Args:
        counts: The numbers of samples, integers of shape (n_clients, n_classes).
        classes: The names of the classes.
        client_names: The names of the clients; None for their numbers.

    Returns:
        A figure with clients from left to right, the first `MAX_CLIENTS` of them, and classes from
        top to bottom. The area of a bubble is proportional to the number of samples.
    """
    table = style.to_numpy(counts)
    shown = table[: style.MAX_CLIENTS]
    names = [style.shorten(name) for name in classes]
    column = style.clipped(8.0 / len(shown), 0.08, 0.5)
    row = style.clipped(7.0 / len(names), 0.11, 0.38)
    clients = [style.shorten(name) for name in (client_names or [""])[: len(shown)]]
    fits = row >= style.line_height(style.TICK_SIZE)
    tick_size = style.TICK_SIZE if fits else style.SMALL_TICK_SIZE
    figure, axes = style.canvas(
        plot=(column * len(shown), row * len(names)),
        left=style.text_width(names, tick_size) + 0.6,
        right=1.2,
        bottom=style.depth(clients, column),
        title=f"{counted(len(table), 'client')}, {counted(int(table.sum()), 'sample')}"
        + style.of_more(len(shown), len(table)),
        note="The area of a bubble is the number of samples of a class that a client holds",
    )
    cell = min(column, row)
    area = _bubble_area(shown, cell)
    x, y = np.nonzero(shown)
    look: dict[str, Any] = {"color": style.BLUE, "linewidths": 0, "clip_on": False}
    # bubbles in tiny cells can overlap
    axes.scatter(x, y, s=shown[x, y] * area, alpha=1 if cell > 0.16 else 0.8, **look)
    axes.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.grid(color=style.FAINT, linewidth=0.6)
    _bubble_legend(axes, int(shown.max()), area)
    if client_names is None:
        ids = style.thinned(len(shown), column, 0.3)
        axes.set_xticks(ids, [str(i) for i in ids])
    else:
        style.column_ticks(axes, clients, column)
    style.row_ticks(axes, names, row, tick_size)
    axes.set(xlabel="client", ylabel="class")
    return figure


def _bubble_area(counts: NDArray[Any], cell: float) -> float:
    """The area, in square points, of a bubble for one sample, for cells of ``cell`` inches."""
    # The largest bubble fits its cell. In tiny cells it may overlap its neighbors, so that small
    # bubbles stay visible, as long as all bubbles together cover less than half of the plot.
    largest = max(0.95 * cell, min(1.8 * cell, 0.15))
    by_size = largest**2 / max(counts.max(), 1)
    by_coverage = 0.45 * counts.size * cell**2 / max(counts.sum(), 1)
    return float(72**2 * (by_size if largest <= cell else min(by_size, by_coverage)))


def _bubble_legend(axes: "Axes", largest: int, area: float) -> None:
    """Draw a legend of bubbles to the right of the axes, the largest for at most ``largest``."""
    from matplotlib.lines import Line2D

    marker: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgewidth": 0}
    counts = {_round_down(largest / part) for part in (1, 4, 20)} - {0}
    bubbles = [
        Line2D([], [], markersize=math.sqrt(n * area), color=style.BLUE, label=f"{n:,}", **marker)
        for n in sorted(counts, reverse=True)
    ]
    title: dict[str, Any] = {"title": "samples", "title_fontsize": style.TICK_SIZE}
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "alignment": "left"}
    gaps: dict[str, Any] = {"labelspacing": 0.9, "borderaxespad": 0, "borderpad": 0.8}
    if bubbles:
        axes.legend(handles=bubbles, **title, **place, **gaps, **style.LEGEND)


def _round_down(value: float) -> int:
    """The largest of 0, 1, 2, 5, 10, 20, 50, ... that is at most the value."""
    if value < 1:
        return 0
    power: int = 10 ** math.floor(math.log10(value))
    return power * max(k for k in (1, 2, 5) if k * power <= value)
