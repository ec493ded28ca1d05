"""A figure of the number of samples of each class that each client holds."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array, Integers
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def partition_figure(
    counts: Array, classes: Sequence[str], client_names: Sequence[str] | None = None
) -> "Figure":
    """Draws how many samples of each class each client holds, as a grid of bubbles.

    The area of a bubble is proportional to the number of samples; no bubble means no samples. Of
    more than `MAX_CLIENTS` clients the first ones are shown, and the title says so.

    Args:
        counts: The numbers of samples, integers of shape (n_clients, n_classes).
        classes: The names of the classes.
        client_names: The names of the clients; None for their numbers.

    Returns:
        A figure with clients from left to right and classes from top to bottom.

    Raises:
        ValueError: If the shapes do not match, or a count is negative or not an integer.
    """
    table = arrays.as_integers(counts, "counts", ("n_clients", "n_classes"))
    if table.shape[1] != len(classes):
        raise ValueError(
            f"counts must have one column for each of the {len(classes)} classes, but have shape "
            f"{table.shape}"
        )
    if table.min() < 0:
        raise ValueError(f"counts must be at least 0, but the smallest is {table.min()}")
    shown = table[: arrays.MAX_CLIENTS]
    names = [style.shorten(name) for name in classes]

    column = arrays.clipped(8.0 / len(shown), 0.08, 0.5)
    row = arrays.clipped(7.0 / len(names), 0.11, 0.38)
    clients = [style.shorten(name) for name in (client_names or [""])[: len(shown)]]
    rotation = style.tick_rotation(clients, column)
    below = math.sin(math.radians(rotation)) * style.text_width(clients, style.TICK_SIZE)
    fits = row >= style.line_height(style.TICK_SIZE)
    tick_size = style.TICK_SIZE if fits else style.SMALL_TICK_SIZE
    figure, axes = style.canvas(
        plot=(column * len(shown), row * len(names)),
        left=style.text_width(names, tick_size) + 0.6,
        right=1.2,
        bottom=0.65 + below,
        title=f"{counted(len(table), 'client')}, {counted(int(table.sum()), 'sample')}"
        + style.of_more(len(shown), len(table)),
        note="The area of a bubble is the number of samples of a class that a client holds",
    )
    area = bubble_area(shown, min(column, row))
    draw_bubbles(axes, shown, area, alpha=1 if min(column, row) > 0.16 else 0.8)
    bubble_legend(axes, int(shown.max()), area)

    if client_names is None:
        ids = style.thinned(len(shown), column, 0.3)
        axes.set_xticks(ids, [str(i) for i in ids])
    else:
        style.class_axis(axes, clients, column, rotation)
    ticks = style.thinned(len(names), row, style.line_height(tick_size))
    axes.set_yticks(ticks, [names[k] for k in ticks], fontsize=tick_size, parse_math=False)
    axes.set_xlabel("client", fontsize=style.LABEL_SIZE, color=style.INK)
    axes.set_ylabel("class", fontsize=style.LABEL_SIZE, color=style.INK)
    return figure


def draw_bubbles(axes: "Axes", counts: Integers, area: float, alpha: float = 1.0) -> None:
    """Draws a bubble for each positive count, clients from left to right, classes downwards.

    Args:
        axes: The axes; their limits become those of the table.
        counts: The numbers of samples, shape (n_clients, n_classes).
        area: The area, in square points, of a bubble for one sample.
        alpha: The opacity; bubbles in tiny cells can overlap.
    """
    clients, held = np.nonzero(counts)
    sizes = counts[clients, held] * area
    look: dict[str, Any] = {"color": style.BLUE, "linewidths": 0, "clip_on": False}
    axes.scatter(clients, held, s=sizes, alpha=alpha, **look)
    axes.set_xlim(-0.5, counts.shape[0] - 0.5)
    axes.set_ylim(counts.shape[1] - 0.5, -0.5)
    axes.grid(color=style.FAINT, linewidth=0.6)


def bubble_area(counts: Integers, cell: float) -> float:
    """The area, in square points, of a bubble for one sample, for cells of ``cell`` inches."""
    # The largest bubble fits its cell. In tiny cells it may overlap its neighbors, so that small
    # bubbles stay visible, as long as all bubbles together cover less than half of the plot.
    largest = max(0.95 * cell, min(1.8 * cell, 0.15))
    by_size = largest**2 / max(counts.max(), 1)
    by_coverage = 0.45 * counts.size * cell**2 / max(counts.sum(), 1)
    return float(72**2 * (by_size if largest <= cell else min(by_size, by_coverage)))


def bubble_legend(axes: "Axes", largest: int, area: float) -> None:
    """Draws a legend of bubbles to the right of the axes, the largest for at most ``largest``."""
    from matplotlib.lines import Line2D

    marker: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgewidth": 0}
    counts = {arrays.round_down(largest / part) for part in (1, 4, 20)} - {0}
    bubbles = [
        Line2D([], [], markersize=math.sqrt(n * area), color=style.BLUE, label=f"{n:,}", **marker)
        for n in sorted(counts, reverse=True)
    ]
    if bubbles:
        axes.legend(
            handles=bubbles,
            title="samples",
            loc="upper left",
            bbox_to_anchor=(1, 1),
            frameon=False,
            fontsize=style.TICK_SIZE,
            title_fontsize=style.TICK_SIZE,
            labelcolor=style.INK,
            labelspacing=0.9,
            borderaxespad=0,
            borderpad=0.8,
            alignment="left",
        )
