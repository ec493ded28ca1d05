"""How much say each client has, over all samples and by their classes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures.arrays import (
    Array,
    Floats,
    Integers,
    class_indices,
    clipped,
    mean_by_class,
    relative_weights,
    runs_of,
)
from fedaux_pl.callbacks.figures.style import (
    BAND,
    BLUE,
    FAINT,
    INK,
    LABEL_HEAD,
    LABEL_SIZE,
    NO_DATA,
    ORANGE,
    TICK_SIZE,
    TIMES,
    canvas,
    client_axis,
    client_labels,
    counted,
    figure_of,
    line_height,
    of_more,
    shorten,
    text_width,
    thinned,
    tick_rotation,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def certainty_figure(scores: Array, client_classes: Array, classes: Sequence[str]) -> "Figure":
    """Draws how much say each client has in the ensemble, and how that varies over the samples.

    What counts in the ensemble is not s_i(x) itself but the share s_i(x) / sum_j s_j(x), so the
    picture shows this share, as a multiple of the 1/n that all clients would have if they were
    equally certain. Rows all close to 1 say that the scores hardly distinguish the clients; a long
    row says that the client is heard on some samples and ignored on others.

    Args:
        scores: Certainty scores s_i(x) on the distillation data, shape (n_clients, n_samples).
        client_classes: The index of the class that each client holds most of, (n_clients,).
        classes: The names of the classes.

    Returns:
        A figure with one row for each client, ordered by main class: 5 % to 95 % of the samples,
        the middle half, the median and the mean. Of more than `MAX_CLIENTS` clients the first
        ones are shown; their shares are of all.

    Raises:
        ValueError: If the shapes do not match, a score is negative or not finite, all scores of a
            sample are 0, or a class is out of range.
    """
    weights, main = relative_weights(scores, client_classes, classes)
    order = np.argsort(main, kind="stable")
    row = clipped(6.4 / len(order), 0.08, 0.34)
    labels = client_labels(order, main, classes, row)
    axes = canvas(
        plot=(6.8, row * len(order)),
        left=text_width([LABEL_HEAD, *labels.values()], TICK_SIZE) + 0.2,
        right=0.3,
        bottom=1.0,
        title="How much say each client has in the ensemble" + of_more(len(order), len(scores)),
        note=r"Its weight $s_i(x)\;/\;\Sigma_j\,s_j(x)$ on "
        f"{counted(weights.shape[1], 'distillation sample')}, divided by that in a plain average",
    )
    _class_bands(axes, main[order])
    _weight_rows(axes, weights[order], row)
    client_axis(axes, labels, len(order))
    axes.set_xlabel("weight relative to uniform", fontsize=LABEL_SIZE, color=INK)
    figure_of(axes).legend(
        loc="lower center",
        ncols=5,
        frameon=False,
        fontsize=TICK_SIZE,
        labelcolor=INK,
        handletextpad=0.5,
        columnspacing=1.6,
    )
    return figure_of(axes)


def weight_by_class_figure(
    scores: Array, labels: Array, client_classes: Array, classes: Sequence[str]
) -> "Figure":
    """Draws which client is listened to on which class, as a heat map.

    A cell is the mean of s_i(x) / sum_j s_j(x) over the samples of a class, as a multiple of 1/n:
    red where the client counts more than in a plain average, blue where less, white where the
    same. Good scores are red on the outlined cells, the main classes of the clients. The colours
    are logarithmic, so twice and half are equally far from white.

    Args:
        scores: Certainty scores s_i(x), shape (n_clients, n_samples).
        labels: The true classes of the samples, integers of shape (n_samples,).
        client_classes: The index of the class that each client holds most of, (n_clients,).
        classes: The names of the classes.

    Returns:
        A figure with one row for each client, ordered by main class, and one column for each
        class, grey where there is no sample of it. Of more than `MAX_CLIENTS` clients the first
        ones are shown; their shares are of all.

    Raises:
        ValueError: As `certainty_figure`, and if labels do not match the scores or the classes.
    """
    weights, main = relative_weights(scores, client_classes, classes)
    truth = class_indices(labels, "labels", weights.shape[1], "sample", classes)
    order = np.argsort(main, kind="stable")
    names = [shorten(name) for name in classes]
    row = clipped(6.4 / len(order), 0.08, 0.34)
    column = clipped(7.0 / len(names), 0.08, 0.8)
    row_labels = client_labels(order, main, classes, row)
    rotation = tick_rotation(names, column)
    below = 0.65 + math.sin(math.radians(rotation)) * text_width(names, TICK_SIZE)
    axes = canvas(
        plot=(column * len(names), row * len(order)),
        left=text_width([LABEL_HEAD, *row_labels.values()], TICK_SIZE) + 0.2,
        right=1.5,
        # the scale of the colours may be longer than the heat map
        bottom=max(below, 2.0 - row * len(order)),
        title="Who is listened to on which class" + of_more(len(order), len(scores)),
        note=f"Mean weight on {counted(weights.shape[1], 'sample')}, divided by that in a plain "
        "average. Outlined: the client's main class",
    )
    _heat_map(axes, mean_by_class(weights[order], truth, len(names)), main[order])
    if min(row, column) > 0.15:  # thinner cells would drown in lines
        axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
        axes.set_yticks(np.arange(0.5, len(order) - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
    client_axis(axes, row_labels, len(order))
    labelled = thinned(len(names), column, line_height(TICK_SIZE) if rotation else 0)
    axes.set_xticks(
        labelled,
        [names[k] for k in labelled],
        rotation=rotation,
        rotation_mode="anchor",
        ha="right" if rotation else "center",
        va="center" if rotation else "top",
        parse_math=False,
    )
    axes.set_xlabel("true class of the samples", fontsize=LABEL_SIZE, color=INK)
    return figure_of(axes)


def _class_bands(axes: "Axes", main: Integers) -> None:
    """Shades the rows of every other main class, so that clients of the same one are seen."""
    for place, (start, stop) in enumerate(runs_of(main)):
        if place % 2 == 0:
            axes.axhspan(start - 0.5, stop - 0.5, color=BAND, linewidth=0, zorder=0)


def _weight_rows(axes: "Axes", weights: Floats, row: float) -> None:
    """Draws one line with the quantiles for each client."""
    quantiles = np.quantile(weights, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
    mean = weights.mean(axis=1)
    lowest, highest = quantiles[0].min(), max(quantiles[-1].max(), mean.max())
    floor = _weight_axis(axes, float(lowest), float(highest))
    low, first, median, third, high = np.maximum(quantiles, floor)

    y = np.arange(len(weights))
    thick = clipped(72 * row * 0.42, 2.5, 8.0)
    axes.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="equal say")
    thin: dict[str, Any] = {"colors": BLUE, "alpha": 0.45, "linewidths": thick / 4}
    axes.hlines(y, low, high, label="5-95 % of samples", **thin)
    bar: dict[str, Any] = {"colors": BLUE, "alpha": 0.55, "linewidths": thick}
    axes.hlines(y, first, third, label="middle half", **bar)
    ring: dict[str, Any] = {
        "color": "white",
        "edgecolors": BLUE,
        "linewidths": thick / 5,
        "zorder": 3,
    }
    axes.scatter(median, y, s=(0.95 * thick) ** 2, label="median", **ring)
    diamond: dict[str, Any] = {"color": ORANGE, "marker": "D", "linewidths": 0, "zorder": 4}
    axes.scatter(np.maximum(mean, floor), y, s=(0.9 * thick) ** 2, label="mean", **diamond)


def _weight_axis(axes: "Axes", low: float, high: float) -> float:
    """Sets up a logarithmic axis around 1 and returns the smallest weight that it shows.

    Scores can make a weight as small as 1e-8, and how small exactly is of no consequence.
    """
    if low < 1 / 16 or high > 16:
        scale = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
    else:
        scale = [2.0**k for k in range(-4, 5)]
    high = max(high, 2.0)
    floor = max([tick for tick in scale if tick <= min(low, 0.5)], default=scale[0])
    ticks = [tick for tick in scale if floor <= tick <= high * 1.05]
    names = [f"{tick:g}{TIMES}" for tick in ticks]
    if low < floor:
        names[0] = f"≤ {names[0]}"
    axes.set_xscale("log")
    axes.set_xlim(floor / 1.08, high * 1.15)
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    return floor


def _heat_map(axes: "Axes", means: Floats, main: Integers) -> None:
    """Draws the cells, the outlines of the main classes and the scale of the colours."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    # The ends of the map are too dark for an outline to be seen on them.
    shades = colormaps["RdBu_r"](np.linspace(0.1, 0.9, 256))
    colours = LinearSegmentedColormap.from_list("weight", shades).with_extremes(bad=NO_DATA)
    # Never narrower than half to twice: pale colours shall mean that the scores say little.
    span = 2.0 ** clipped(math.ceil(math.log2(max(np.nanmax(means), 1))), 1, 4)
    image = axes.imshow(
        np.ma.masked_invalid(means),
        cmap=colours,
        norm=LogNorm(1 / span, span, clip=True),
        aspect="auto",
        interpolation="nearest",
    )
    for start, stop in runs_of(main):
        corner = (main[start] - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, 1, stop - start, fill=False, ec=INK, lw=1.2))

    figure, box = figure_of(axes), axes.get_position()
    width, height = figure.get_size_inches()
    length = clipped(box.height, 1.8 / height, 4.0 / height)
    place = (box.x1 + 0.25 / width, box.y1 - length, 0.2 / width, length)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_label("weight relative to uniform", fontsize=TICK_SIZE, color=INK)
    ticks = [2.0**k for k in range(-4, 5) if 1 / span <= 2.0**k <= span]
    names = [f"{tick:.3g}{TIMES}" for tick in ticks]
    if np.nanmin(means) < ticks[0]:
        names[0] = f"≤ {names[0]}"
    if np.nanmax(means) > ticks[-1]:
        names[-1] = f"≥ {names[-1]}"
    bar.set_ticks(ticks, labels=names)
    bar.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=TICK_SIZE, colors=INK)
    bar.ax.spines[:].set_visible(False)
