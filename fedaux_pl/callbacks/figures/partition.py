"""Which client holds how much of which class."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures.arrays import (
    MAX_CLIENTS,
    Array,
    Integers,
    as_integers,
    clipped,
    round_down,
)
from fedaux_pl.callbacks.figures.style import (
    BLUE,
    FAINT,
    INK,
    LABEL_SIZE,
    SMALL_TICK_SIZE,
    TICK_SIZE,
    canvas,
    counted,
    figure_of,
    line_height,
    of_more,
    shorten,
    text_width,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def partition_figure(counts: Array, classes: Sequence[str]) -> "Figure":
    """Draws how many samples of each class each client holds, as a grid of bubbles.

    The area of a bubble is proportional to the number of samples; where there is none, the client
    has no sample of the class. Of more than `MAX_CLIENTS` clients the first ones are shown, as
    the title then says.

    Args:
        counts: Numbers of samples, integers of shape (n_clients, n_classes).
        classes: The names of the classes.

    Returns:
        A figure with clients from left to right and classes from top to bottom.

    Raises:
        ValueError: If the shapes do not match, or a count is negative or not an integer.
    """
    table = as_integers(counts, "counts", ("n_clients", "n_classes"))
    if table.shape[1] != len(classes):
        raise ValueError(
            f"counts must have one column for each of the {len(classes)} classes, but have shape "
            f"{table.shape}"
        )
    if table.min() < 0:
        raise ValueError(f"counts must be at least 0, but the smallest is {table.min()}")
    shown = table[:MAX_CLIENTS]
    names = [shorten(name) for name in classes]

    column = clipped(8.0 / len(shown), 0.08, 0.5)
    row = clipped(7.0 / len(names), 0.11, 0.38)
    tick_size = TICK_SIZE if row >= line_height(TICK_SIZE) else SMALL_TICK_SIZE
    axes = canvas(
        plot=(column * len(shown), row * len(names)),
        left=text_width(names, tick_size) + 0.6,
        right=1.2,
        bottom=0.65,
        title=f"{counted(len(table), 'client')}, {counted(int(table.sum()), 'sample')}"
        + of_more(len(shown), len(table)),
        note="Who holds what: the area of a bubble is the number of samples",
    )
    area = _bubble_area(shown, min(column, row))
    clients, kinds = np.nonzero(shown)
    axes.scatter(
        clients,
        kinds,
        s=shown[clients, kinds] * area,
        color=BLUE,
        alpha=1 if min(column, row) > 0.16 else 0.8,  # where cells are tiny, bubbles can overlap
        linewidths=0,
        clip_on=False,
    )
    _bubble_legend(axes, int(shown.max()), area)

    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    ids = thinned(len(shown), column, 0.3)
    axes.set_xticks(ids, [str(i) for i in ids])
    labelled = thinned(len(names), row, line_height(tick_size))
    axes.set_yticks(labelled, [names[k] for k in labelled], fontsize=tick_size, parse_math=False)
    axes.set_xlabel("client", fontsize=LABEL_SIZE, color=INK)
    axes.set_ylabel("class", fontsize=LABEL_SIZE, color=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    return figure_of(axes)


def _bubble_area(counts: Integers, cell: float) -> float:
    """Chooses the area, in square points, of a bubble for one sample."""
    # The largest bubble fits its cell. Where cells are tiny it may overlap its neighbours, so
    # that the others can be seen, as long as all bubbles together leave most of the ground free.
    largest = max(0.95 * cell, min(1.8 * cell, 0.15))
    by_size = largest**2 / max(counts.max(), 1)
    by_ground = 0.45 * counts.size * cell**2 / max(counts.sum(), 1)
    return float(72**2 * (by_size if largest <= cell else min(by_size, by_ground)))


def _bubble_legend(axes: "Axes", largest: int, area: float) -> None:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "", "marker": "o", "color": BLUE, "markeredgewidth": 0}
    examples = sorted({round_down(largest / part) for part in (1, 4, 20)} - {0}, reverse=True)
    if examples:
        axes.legend(
            handles=[
                Line2D([], [], markersize=math.sqrt(count * area), label=f"{count:,}", **style)
                for count in examples
            ],
            title="samples",
            loc="upper left",
            bbox_to_anchor=(1, 1),
            frameon=False,
            fontsize=TICK_SIZE,
            title_fontsize=TICK_SIZE,
            labelcolor=INK,
            labelspacing=0.9,
            borderaxespad=0,
            borderpad=0.8,
            alignment="left",
        )
