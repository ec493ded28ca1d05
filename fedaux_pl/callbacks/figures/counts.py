"""Figures of clients and classes: split, participation, metrics over rounds, confusion matrix."""

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

MAX_ROUNDS = 250  # of more rounds the last ones are shown
MAX_WRITTEN = 20  # classes whose cells have numbers
_WIDTH, _HEIGHT = (7.0, 2.8)  # inches of the lines of a metric
_PITCH = _HEIGHT + 0.45  # with the gap below them


def partition_figure(
    counts: Array, classes: Sequence[str], client_names: Sequence[str] | None = None
) -> "Figure":
    """Draw how many samples of each class each client holds, as a grid of bubbles.

    Clients, the first `MAX_CLIENTS` of them, go from left to right and classes from top to bottom;
    the counts have the shape (clients, classes). Without names, clients have numbers.
    """
    from matplotlib.ticker import MaxNLocator

    table = style.to_numpy(counts)
    shown = table[: style.MAX_CLIENTS]
    names = [style.cut(name) for name in classes]
    column = style.clipped(8.0 / len(shown), 0.08, 0.5)
    row = style.clipped(7.0 / len(names), 0.11, 0.38)
    clients = [style.cut(name) for name in client_names or map(str, range(len(table)))]
    title = f"{counted(len(table), 'client')}, {counted(int(table.sum()), 'sample')}"
    title += style.of_more(len(shown), len(table))
    note = "The area of a bubble is the number of samples of a class that a client holds"
    figure, axes = style.canvas(column * len(shown), row * len(names), title, note)
    cell = min(column, row)
    # The largest bubble fits its cell. In tiny cells it may overlap its neighbors, so that small
    # bubbles stay visible, as long as all bubbles together cover less than half of the plot.
    largest = max(0.95 * cell, min(1.8 * cell, 0.15))
    by_size = largest**2 / max(shown.max(), 1)
    by_coverage = 0.45 * shown.size * cell**2 / max(shown.sum(), 1)
    area = float(72**2 * (by_size if largest <= cell else min(by_size, by_coverage)))
    x, y = np.nonzero(shown)
    points = axes.scatter(
        x,
        y,
        s=shown[x, y] * area,
        color=style.BLUE,
        alpha=1 if cell > 0.16 else 0.8,  # bubbles in tiny cells can overlap
        linewidths=0,
        clip_on=False,
    )
    axes.set(xlim=(-0.5, len(shown) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.grid(color=style.FAINT, linewidth=0.6)
    if x.size:
        handles, labels = points.legend_elements(
            "sizes",
            num=MaxNLocator(4, integer=True),
            fmt="{x:,.0f}",
            func=lambda sizes: np.divide(sizes, area).round(6),
            color=style.BLUE,
            markeredgewidth=0,
        )
        axes.legend(
            handles,
            labels,
            title="samples",
            labelspacing=2,
            loc="upper left",
            bbox_to_anchor=(1.02, 1),
            **style.LEGEND,
        )
    style.column_ticks(axes, clients[: len(shown)], column)
    style.row_ticks(axes, names, row)
    axes.set(xlabel="client", ylabel="class")
    return figure


def participation_figure(took_part: Array, client_names: Sequence[str]) -> "Figure":
    """Draw which of the first `MAX_CLIENTS` clients took part in which round, and how often.

    ``took_part`` is 1 where a client took part, else 0: integers of shape (rounds, clients).
    """
    from matplotlib.colors import ListedColormap

    table = style.to_numpy(took_part)
    rounds, clients = table.shape
    shown = table[-MAX_ROUNDS:, : style.MAX_CLIENTS]
    first = rounds - len(shown) + 1
    names = [style.cut(name) for name in client_names[: shown.shape[1]]]
    column = style.clipped(8.0 / len(shown), 0.03, 0.35)
    row = style.clipped(6.4 / len(names), 0.08, 0.3)
    start = "" if first == 1 else f", from round {first}"
    title = "Who took part" + style.of_more(len(names), clients)
    meaning = "filled: the client trained in the round. Right: its number of rounds"
    note = f"{counted(rounds, 'round')}{start}; {meaning}"
    figure, axes = style.canvas(column * len(shown), row * len(names), title, note)
    axes.imshow(
        shown.T,
        cmap=ListedColormap([style.BAND, style.BLUE]),
        extent=(first - 0.5, rounds + 0.5, len(names) - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=1,
    )
    if min(row, column) > 0.12:
        style.separate_cells(axes, len(shown), len(names), first)
    for i in style.row_ticks(axes, names, row):
        axes.annotate(
            str(table[:, i].sum()),
            (1, i),
            (6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=style.TICK_SIZE,
            color=style.MUTED,
        )
    labels = [first + t for t in style.thinned(len(shown), column, 0.35)]
    axes.set_xticks(labels, list(map(str, labels)))
    axes.set_xlabel("round")
    return figure


def client_lines_figure(
    rounds: Sequence[int], names: Sequence[str], curves: Mapping[str, Array]
) -> "Figure":
    """Draw each client's metrics over the rounds, with the mean over the clients.

    Of many clients the one with the worst last accuracy alone is colored and named. The curves of
    each metric are floats of shape (clients, rounds); NaN where there is no value.
    """
    shown = [style.cut(name) for name in names]
    first = next(iter(curves))
    total = _PITCH * (len(curves) - 1) + _HEIGHT
    title = "Metrics of each client" if len(curves) > 1 else "Accuracy of each client"
    data = "validation data" if first.startswith("val/") else "test data"
    note = f"{counted(len(names), 'client')}, each on its own {data}"
    figure, whole = style.canvas(_WIDTH, total, title, note)
    whole.set_axis_off()
    worst = int(np.nanargmin(style.to_numpy(curves[first])[:, -1]))
    for k, (metric, values) in enumerate(curves.items()):
        lower = (total - _HEIGHT - k * _PITCH) / total
        axes = whole.inset_axes((0, lower, 1, _HEIGHT / total))
        in_percent = "accuracy" in metric
        table = style.to_numpy(values) * (100 if in_percent else 1)
        _draw_lines(axes, rounds, shown, table, worst)
        axes.set_ylabel(metric.removeprefix("val/").replace("_", " ") + " in %" * in_percent)
        if k == 0:
            legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1.03), **style.LEGEND)
            for text in legend.get_texts():
                text.set_parse_math(False)
    axes.set_xlabel("round")
    return figure


def client_bars_figure(names: Sequence[str], accuracies: Sequence[float], note: str) -> "Figure":
    """Draw the accuracy of the first `MAX_CLIENTS` clients as bars, and their mean as a line."""
    shown = [style.cut(name) for name in names[: style.MAX_CLIENTS]]
    percents = [100 * accuracy for accuracy in accuracies]
    mean = float(np.mean(percents))
    row = style.clipped(6.4 / len(shown), 0.08, 0.35)
    title = f"Test accuracy of each client: mean {mean:.1f} %"
    title += style.of_more(len(shown), len(names))
    figure, axes = style.canvas(_WIDTH, row * len(shown), title, note)
    axes.barh(range(len(shown)), percents[: len(shown)], height=0.7, color=style.BLUE)
    axes.axvline(mean, color=style.INK, linewidth=1.6, linestyle=(0, (4, 2)))
    for i in style.row_ticks(axes, shown, row):
        axes.annotate(
            f"{percents[i]:.1f}",
            (1, i),
            (6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=style.TICK_SIZE,
            color=style.MUTED,
        )
    axes.set(xlim=(0, 100), ylim=(len(shown) - 0.5, -0.5), xlabel="accuracy in %")
    return figure


def blend_figure(weights: Mapping[str, Mapping[int, float]]) -> "Figure":
    """Draw the weight of the distilled model over the rounds, as the clients chose it."""
    note = "0: the average of the clients' models, 1: the distilled model"
    figure, axes = style.canvas(_WIDTH, _HEIGHT, "What the clients voted for", note)
    for name, by_round in weights.items():
        axes.plot(list(by_round), list(by_round.values()), label=name, marker="o", ms=4, lw=1.6)
    axes.set(ylim=(-0.05, 1.05), yticks=[0, 0.25, 0.5, 0.75, 1])
    axes.set(xlabel="round", ylabel="weight of the distilled model")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(axis="y", color=style.FAINT, linewidth=0.6)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1.03), **style.LEGEND)
    return figure


def _draw_lines(
    axes: "Axes", rounds: Sequence[int], names: Sequence[str], table: NDArray[Any], worst: int
) -> None:
    is_few = len(names) <= len(style.COLORS)
    marker = "o" if len(rounds) <= 20 else ""
    for i, (name, line) in enumerate(zip(names, table, strict=True)):
        if is_few or i == worst:
            color = style.COLORS[i] if is_few else style.ORANGE
            axes.plot(rounds, line, color=color, lw=1.6, label=name, marker=marker, ms=4, zorder=3)
        else:
            axes.plot(rounds, line, color=style.NO_DATA, lw=0.8)
    axes.plot(
        rounds,
        np.ma.masked_invalid(table).mean(axis=0),
        color=style.INK,
        linewidth=2.4,
        linestyle=(0, (4, 2)),
        marker=marker,
        markersize=3,
        label="mean",
        zorder=4,
    )
    axes.grid(color=style.FAINT, linewidth=0.8)
    style.plain_axes(axes)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlim(rounds[0] - 0.2, rounds[-1] + 0.2)


def confusion_figure(counts: Array, classes: Sequence[str], data: str = "test data") -> "Figure":
    """Draw how often samples of each true class (rows) are taken for which class (columns).

    The colors are the shares of a row. With at most `MAX_WRITTEN` classes every cell that is not
    empty has its count and, below, its share of the row in percent.
    """
    table = style.to_numpy(counts)
    size = len(classes)
    names = [style.cut(name, 18) for name in classes]
    cell = style.clipped(9.0 / size, 0.08, 0.62)
    accuracy = table.trace() / max(table.sum(), 1)
    title = f"Confusion matrix: {accuracy:.1%} correct"
    samples = counted(int(table.sum()), "sample")
    note = f"{samples} of the {data}; the color is the share of its row"
    figure, axes = style.canvas(cell * size, cell * size, title, note)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    if size <= MAX_WRITTEN:
        for i, j in np.argwhere(table):
            share = shares[i, j]
            axes.text(
                j,
                i,
                f"{table[i, j]}\n{100 * share:.0f} %",
                color="white" if share > 0.55 else style.INK,
                ha="center",
                va="center",
                fontsize=style.SMALL_TICK_SIZE,
            )
    style.row_ticks(axes, names, cell)
    style.column_ticks(axes, names, cell)
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure
