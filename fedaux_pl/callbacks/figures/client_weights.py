"""Figures of the clients' weights in the ensemble, over all samples and by class."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array, Floats, Integers
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def certainty_figure(
    scores: Array,
    client_classes: Array,
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
) -> "Figure":
    """Draws the weight of each client in the ensemble, and how it varies over the samples.

    The weight of a client is s_i(x) / sum_j s_j(x), drawn as a multiple of the uniform weight 1/n.
    If all rows are close to 1, the scores hardly distinguish the clients; a long row means that
    the weight of the client differs much between samples.

    Args:
        scores: Certainty scores s_i(x) on the distillation data, shape (n_clients, n_samples).
        client_classes: The main class of each client, an index of shape (n_clients,).
        classes: The names of the classes.
        client_names: The names of the clients; None for their numbers.

    Returns:
        A figure with one row for each client, ordered by main class: the 5 % to 95 % quantiles,
        the middle half, the median and the mean. Of more than `MAX_CLIENTS` clients the first
        ones are shown, with their weights among all clients.

    Raises:
        ValueError: If the shapes do not match, a score is negative or not finite, all scores of a
            sample are 0, or a class is out of range.
    """
    weights, main = arrays.relative_weights(scores, client_classes, classes)
    order = np.argsort(main, kind="stable")
    row = arrays.clipped(6.4 / len(order), 0.08, 0.34)
    labels = style.client_labels(order, main, classes, row, client_names)
    figure, axes = style.canvas(
        plot=(6.8, row * len(order)),
        left=style.text_width([style.LABEL_HEAD, *labels.values()], style.TICK_SIZE) + 0.2,
        right=0.3,
        bottom=1.0,
        title="Weight of each client in the ensemble" + style.of_more(len(order), len(scores)),
        note=r"$n\,s_i(x)\;/\;\Sigma_j\,s_j(x)$ on "
        f"{counted(weights.shape[1], 'distillation sample')}; 1 in a plain average",
    )
    _class_bands(axes, main[order])
    _weight_rows(axes, weights[order], row)
    style.client_axis(axes, labels, len(order))
    axes.set_xlabel("weight relative to uniform", fontsize=style.LABEL_SIZE, color=style.INK)
    figure.legend(
        loc="lower center",
        ncols=5,
        frameon=False,
        fontsize=style.TICK_SIZE,
        labelcolor=style.INK,
        handletextpad=0.5,
        columnspacing=1.6,
    )
    return figure


def weight_by_class_figure(
    scores: Array,
    labels: Array,
    client_classes: Array,
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
) -> "Figure":
    """Draws the mean weight of each client on each class, as a heat map.

    A cell is the mean of s_i(x) / sum_j s_j(x) over the samples of a class, as a multiple of 1/n:
    red if the client counts more than in a plain average, blue if less, white if the same. With
    good scores the outlined cells, the main classes of the clients, are red. The color scale is
    logarithmic: the factors 2 and 1/2 are equally far from white.

    Args:
        scores: Certainty scores s_i(x), shape (n_clients, n_samples).
        labels: The true classes of the samples, integers of shape (n_samples,).
        client_classes: The main class of each client, an index of shape (n_clients,).
        classes: The names of the classes.
        client_names: The names of the clients; None for their numbers.

    Returns:
        A figure with one row for each client, ordered by main class, and one column for each
        class, gray if it has no samples. Of more than `MAX_CLIENTS` clients the first ones are
        shown, with their weights among all clients.

    Raises:
        ValueError: As `certainty_figure`, and if labels do not match the scores or the classes.
    """
    weights, main = arrays.relative_weights(scores, client_classes, classes)
    truth = arrays.class_indices(labels, "labels", weights.shape[1], "sample", classes)
    order = np.argsort(main, kind="stable")
    names = [style.shorten(name) for name in classes]
    row = arrays.clipped(6.4 / len(order), 0.08, 0.34)
    column = arrays.clipped(7.0 / len(names), 0.08, 0.8)
    row_labels = style.client_labels(order, main, classes, row, client_names)
    rotation = style.tick_rotation(names, column)
    below = 0.65 + math.sin(math.radians(rotation)) * style.text_width(names, style.TICK_SIZE)
    figure, axes = style.canvas(
        plot=(column * len(names), row * len(order)),
        left=style.text_width([style.LABEL_HEAD, *row_labels.values()], style.TICK_SIZE) + 0.2,
        right=1.5,
        # the color bar can be longer than the heat map
        bottom=max(below, 2.0 - row * len(order)),
        title="Weight of each client on each class" + style.of_more(len(order), len(scores)),
        note=f"Mean over {counted(weights.shape[1], 'sample')}; 1 in a plain average. "
        "Outlined: the client's main class",
    )
    _heat_map(figure, axes, arrays.mean_by_class(weights[order], truth, len(names)), main[order])
    if min(row, column) > 0.15:  # no grid lines between very small cells
        axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
        axes.set_yticks(np.arange(0.5, len(order) - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
    style.client_axis(axes, row_labels, len(order))
    style.class_axis(axes, names, column, rotation)
    axes.set_xlabel("true class of the samples", fontsize=style.LABEL_SIZE, color=style.INK)
    return figure


def _class_bands(axes: "Axes", main: Integers) -> None:
    """Shades the rows of every other main class, to group the clients of a class."""
    for index, (start, stop) in enumerate(arrays.runs_of(main)):
        if index % 2 == 0:
            axes.axhspan(start - 0.5, stop - 0.5, color=style.BAND, linewidth=0, zorder=0)


def _weight_rows(axes: "Axes", weights: Floats, row: float) -> None:
    """Draws one row with the quantiles and the mean of each client."""
    quantiles = np.quantile(weights, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
    mean = weights.mean(axis=1)
    lowest, highest = quantiles[0].min(), max(quantiles[-1].max(), mean.max())
    floor = _weight_axis(axes, float(lowest), float(highest))
    low, first, median, third, high = np.maximum(quantiles, floor)
    y = np.arange(len(weights))
    thick = arrays.clipped(72 * row * 0.42, 2.5, 8.0)
    axes.axvline(1, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)), label="uniform weight")
    thin: dict[str, Any] = {"colors": style.BLUE, "alpha": 0.45, "linewidths": thick / 4}
    axes.hlines(y, low, high, label="5-95 % of samples", **thin)
    bar: dict[str, Any] = {"colors": style.BLUE, "alpha": 0.55, "linewidths": thick}
    axes.hlines(y, first, third, label="middle half", **bar)
    ring: dict[str, Any] = {"color": "white", "edgecolors": style.BLUE, "linewidths": thick / 5}
    axes.scatter(median, y, s=(0.95 * thick) ** 2, label="median", zorder=3, **ring)
    diamond: dict[str, Any] = {"color": style.ORANGE, "marker": "D", "linewidths": 0}
    axes.scatter(
        np.maximum(mean, floor), y, s=(0.9 * thick) ** 2, label="mean", zorder=4, **diamond
    )


def _weight_axis(axes: "Axes", low: float, high: float) -> float:
    """Sets up a logarithmic axis around 1 and returns its smallest weight.

    Weights can be as small as 1e-8; smaller ones than the first tick are drawn at it.
    """
    if low < 1 / 16 or high > 16:
        scale = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
    else:
        scale = [2.0**k for k in range(-4, 5)]
    high = max(high, 2.0)
    floor = max([tick for tick in scale if tick <= min(low, 0.5)], default=scale[0])
    ticks = [tick for tick in scale if floor <= tick <= high * 1.05]
    names = [f"{tick:g}{style.TIMES}" for tick in ticks]
    if low < floor:
        names[0] = f"≤ {names[0]}"
    axes.set_xscale("log")
    axes.set_xlim(floor / 1.08, high * 1.15)
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=style.FAINT, linewidth=0.8)
    return floor


def _heat_map(figure: "Figure", axes: "Axes", means: Floats, main: Integers) -> None:
    """Draws the cells, the outlines of the main classes and the color bar."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    # without the ends of the color map, which are too dark for an outline
    shades = colormaps["RdBu_r"](np.linspace(0.1, 0.9, 256))
    colors = LinearSegmentedColormap.from_list("weight", shades).with_extremes(bad=style.NO_DATA)
    # at least from 1/2 to 2, so that weights close to uniform are pale
    span = 2.0 ** arrays.clipped(math.ceil(math.log2(max(np.nanmax(means), 1))), 1, 4)
    image = axes.imshow(
        np.ma.masked_invalid(means),
        cmap=colors,
        norm=LogNorm(1 / span, span, clip=True),
        aspect="auto",
        interpolation="nearest",
    )
    for start, stop in arrays.runs_of(main):
        corner = (main[start] - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, 1, stop - start, fill=False, ec=style.INK, lw=1.2))
    box = axes.get_position()
    width, height = figure.get_size_inches()
    length = arrays.clipped(box.height, 1.8 / height, 4.0 / height)
    position = (box.x1 + 0.25 / width, box.y1 - length, 0.2 / width, length)
    bar = figure.colorbar(image, cax=figure.add_axes(position))
    bar.set_label("weight relative to uniform", fontsize=style.TICK_SIZE, color=style.INK)
    ticks = [2.0**k for k in range(-4, 5) if 1 / span <= 2.0**k <= span]
    names = [f"{tick:.3g}{style.TIMES}" for tick in ticks]
    if np.nanmin(means) < ticks[0]:
        names[0] = f"≤ {names[0]}"
    if np.nanmax(means) > ticks[-1]:
        names[-1] = f"≥ {names[-1]}"
    bar.set_ticks(ticks, labels=names)
    bar.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=style.TICK_SIZE, colors=style.INK)
    bar.ax.spines[:].set_visible(False)
