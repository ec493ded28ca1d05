"""A figure of the confusion matrix."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WRITTEN = 20
"""The maximum number of classes whose cells have numbers."""


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

    Raises:
        ValueError: If the shapes do not match, or a count is negative or not an integer.
    """
    table = arrays.as_integers(counts, "counts", ("n_classes", "n_classes"))
    size = len(classes)
    if table.shape != (size, size):
        raise ValueError(
            f"counts must have shape ({size}, {size}), as there are {size} classes, but have "
            f"{table.shape}"
        )
    if table.min() < 0:
        raise ValueError(f"counts must be at least 0, but the smallest is {table.min()}")
    names = [style.shorten(name, 18) for name in classes]
    cell = arrays.clipped(9.0 / size, 0.08, 0.62)
    rotation = style.tick_rotation(names, cell)
    below = 0.65 + math.sin(math.radians(rotation)) * style.text_width(names, style.TICK_SIZE)
    accuracy = table.trace() / max(table.sum(), 1)
    figure, axes = style.canvas(
        plot=(cell * size, cell * size),
        left=style.text_width(names, style.TICK_SIZE) + 0.6,
        right=0.3,
        bottom=below,
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
    rows = style.thinned(size, cell, style.line_height(style.TICK_SIZE))
    axes.set_yticks(rows, [names[k] for k in rows], parse_math=False)
    style.class_axis(axes, names, cell, rotation)
    axes.set_xlabel("predicted class", fontsize=style.LABEL_SIZE, color=style.INK)
    axes.set_ylabel("true class", fontsize=style.LABEL_SIZE, color=style.INK)
    return figure
