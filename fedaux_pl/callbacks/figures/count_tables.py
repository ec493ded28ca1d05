"""Figures of tables: who took part in each round, and the confusion matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROUNDS = 250
"""The maximum number of rounds in a figure; of more rounds the last ones are shown."""

MAX_WRITTEN = 20
"""The maximum number of classes whose cells have numbers."""


def participation_figure(took_part: Array, client_names: Sequence[str]) -> "Figure":
    """Draw which clients took part in which round, and how often each of them did.

    Args:
        took_part: 1 where a client took part and 0 elsewhere, integers of shape (rounds, clients).
        client_names: The names of the clients.

    Returns:
        A figure with rounds from left to right and one row for each of the first `MAX_CLIENTS`
        clients, with the number of its rounds behind it.
    """
    from matplotlib.colors import ListedColormap

    table = style.to_numpy(took_part)
    rounds, clients = table.shape
    shown = table[-MAX_ROUNDS:, : style.MAX_CLIENTS]
    first = rounds - len(shown) + 1
    names = [style.shorten(name) for name in client_names[: shown.shape[1]]]
    column = style.clipped(8.0 / len(shown), 0.03, 0.35)
    row = style.clipped(6.4 / len(names), 0.08, 0.3)
    part = "" if first == 1 else f", from round {first}"
    figure, axes = style.canvas(
        plot=(column * len(shown), row * len(names)),
        left=style.text_width(names, style.TICK_SIZE) + 0.2,
        right=0.8,
        bottom=0.65,
        title="Who took part" + style.of_more(len(names), clients),
        note=f"{counted(rounds, 'round')}{part}; filled: the client trained in the round. "
        "Right: its number of rounds",
    )
    extent = (first - 0.5, rounds + 0.5, len(names) - 0.5, -0.5)
    image: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmin": 0, "vmax": 1}
    axes.imshow(shown.T, cmap=ListedColormap([style.BAND, style.BLUE]), extent=extent, **image)
    if min(row, column) > 0.12:
        style.separate_cells(axes, len(shown), len(names), first)
    text: dict[str, Any] = {"va": "center", "fontsize": style.TICK_SIZE, "color": style.MUTED}
    text |= {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    for i in style.row_ticks(axes, names, row):
        axes.annotate(str(table[:, i].sum()), (1, i), (6, 0), **text)
    labels = [first + t for t in style.thinned(len(shown), column, 0.35)]
    axes.set_xticks(labels, [str(t) for t in labels])
    axes.set_xlabel("round")
    return figure


def confusion_figure(counts: Array, classes: Sequence[str], data: str = "test data") -> "Figure":
    """Draw how often samples of each class are taken for which class.

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
