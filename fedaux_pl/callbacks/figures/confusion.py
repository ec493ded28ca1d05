"""A figure of the confusion matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WRITTEN = 20  # classes


def confusion_figure(counts: Array, classes: Sequence[str], data: str = "test data") -> "Figure":
    """Draws how often samples of each class are taken for which class.

    Args:
        counts: The numbers of samples, integers of shape (C, C); rows are the true classes,
            columns the predicted ones.
        classes: The names of the C classes.
        data: What the samples are, for the note.

    Returns:
        A figure whose colors are the shares of a row. With at most `MAX_WRITTEN` classes every
        cell that is not empty has its count and, below, its share of the row in percent.
    """
    table, size = style.to_numpy(counts), len(classes)
    names = [style.shorten(name, 18) for name in classes]
    cell = style.clipped(9.0 / size, 0.08, 0.62)
    accuracy = table.trace() / max(table.sum(), 1)
    figure, axes = style.canvas(
        plot=(cell * size, cell * size),
        left=style.text_width(names, style.TICK_SIZE) + 0.6,
        right=0.3,
        bottom=style.depth(names, cell),
        title=f"Confusion matrix: {accuracy:.1%} correct",
        note=f"{counted(int(table.sum()), 'sample')} of the {data}; the color is the share "
        "of its row",
    )
    totals = table.sum(axis=1, keepdims=True)
    shares = np.divide(table, totals, out=np.zeros(table.shape), where=totals > 0)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    if size <= MAX_WRITTEN:
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.SMALL_TICK_SIZE}
        for i, j in np.argwhere(table):
            color = "white" if shares[i, j] > 0.55 else style.INK
            axes.text(j, i, f"{table[i, j]}\n{100 * shares[i, j]:.0f} %", color=color, **text)
    style.row_ticks(axes, names, cell)
    style.column_ticks(axes, names, cell)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure
