"""Figures of the clients' weights in the ensemble, over all samples and by class."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]
_FACTORS = [2.0**k for k in range(-4, 5)]


def certainty_figure(
    scores: Array,
    client_classes: Array,
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
) -> "Figure":
    """Draw the weight of each client in the ensemble, and how it varies over the samples.

    The weight of a client is s_i(x) / sum_j s_j(x), drawn as a multiple of the uniform weight 1/n.
    If all rows are close to 1, the scores hardly distinguish the clients. Clients are ordered by
    main class; of more than `MAX_CLIENTS` the first are shown, with their weights among all.
    The scores have the shape (clients, samples); without names, clients have numbers.
    """
    clients = _Clients(scores, client_classes, classes, client_names)
    count, samples = clients.weights.shape
    title = "Weight of each client in the ensemble" + style.of_more(count, len(scores))
    on = f" on {counted(samples, 'distillation sample')}; 1 in a plain average"
    note = r"$n\,s_i(x)\;/\;\Sigma_j\,s_j(x)$" + on
    figure, axes = style.canvas(6.8, clients.row * count, title, note, has_formula=True)
    for start, stop in list(_runs_of(clients.main))[::2]:  # groups the clients of a class
        axes.axhspan(start - 0.5, stop - 0.5, color=style.BAND, linewidth=0, zorder=0)
    _weight_rows(axes, clients.weights, clients.row)
    clients.label(axes)
    axes.set_xlabel("weight relative to uniform")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.55 / (clients.row * count)),
        ncols=5,
        handletextpad=0.5,
        columnspacing=1.6,
        **style.LEGEND,
    )
    return figure


def weight_by_class_figure(
    scores: Array,
    labels: Array,
    client_classes: Array,
    classes: Sequence[str],
    client_names: Sequence[str] | None = None,
) -> "Figure":
    """Draw the mean weight of each client on each class, as a heat map.

    A cell is the mean of s_i(x) / sum_j s_j(x) over the samples of a class, as a multiple of 1/n:
    red if the client counts more than in a plain average, blue if less, gray without samples. With
    good scores the outlined cells, the main classes of the clients, are red. The arguments are
    those of `certainty_figure`, and ``labels``, the true classes, integers of shape (n_samples,).
    """
    clients = _Clients(scores, client_classes, classes, client_names)
    count, samples = clients.weights.shape
    names = [style.cut(name) for name in classes]
    column = style.clipped(7.0 / len(names), 0.08, 0.8)
    title = "Weight of each client on each class" + style.of_more(count, len(scores))
    mean = f"Mean over {counted(samples, 'sample')}; 1 in a plain average"
    note = f"{mean}. Outlined: the client's main class"
    figure, axes = style.canvas(column * len(names), clients.row * count, title, note)
    member = style.to_numpy(labels)[:, None] == np.arange(len(names))
    with np.errstate(invalid="ignore"):  # NaN for classes without samples
        means = clients.weights @ member.astype(np.float64) / member.sum(axis=0)
    _heat_map(figure, axes, means, clients.main)
    if min(clients.row, column) > 0.15:  # no grid lines between very small cells
        style.separate_cells(axes, len(names), count)
    clients.label(axes)
    style.column_ticks(axes, names, column)
    axes.set_xlabel("true class of the samples")
    return figure


class _Clients:
    """The shown clients, ordered by main class, with the height of a row in inches.

    Their weights, of shape (clients, samples), are n s_i(x) / sum_j s_j(x): the sum is over all.
    """

    def __init__(
        self, scores: Array, main: Array, classes: Sequence[str], names: Sequence[str] | None
    ) -> None:
        table = style.to_numpy(scores)
        main = style.to_numpy(main)[: style.MAX_CLIENTS]
        total = table.sum(axis=0, dtype=np.float64)
        order = np.argsort(main, kind="stable")
        self.weights: _Floats = table[order] * (len(table) / total)
        self.main: _Integers = main[order]
        self.row = style.clipped(6.4 / len(order), 0.08, 0.34)
        named = names or [str(i) for i in range(len(table))]
        self.labels = [f"{style.cut(classes[main[i]])} · {style.cut(named[i])}" for i in order]

    def label(self, axes: "Axes") -> None:
        """Write the labels of the rows and a heading above them."""
        axes.set_ylim(len(self.main) - 0.5, -0.5)
        style.row_ticks(axes, self.labels, self.row)
        axes.annotate(
            "main class · client",
            (0, 1),
            (-5, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=style.TICK_SIZE,
            color=style.MUTED,
        )


def _runs_of(values: _Integers) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of equal values."""
    changes = np.flatnonzero(np.diff(values)) + 1
    return pairwise([0, *changes.tolist(), len(values)])


def _weight_rows(axes: "Axes", weights: _Floats, row: float) -> None:
    """Draw one row with the quantiles and the mean of each client."""
    quantiles = np.quantile(weights, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
    mean = weights.mean(axis=1)
    largest = max(quantiles[-1].max(), mean.max())
    floor = _weight_axis(axes, float(quantiles[0].min()), float(largest))
    low, first, median, third, high = np.maximum(quantiles, floor)
    y = np.arange(len(weights))
    thick = style.clipped(72 * row * 0.42, 2.5, 8.0)
    axes.axvline(1, color=style.INK, linewidth=1.2, linestyle=(0, (4, 3)), label="uniform weight")
    axes.hlines(
        y,
        low,
        high,
        label="5-95 % of samples",
        colors=style.BLUE,
        alpha=0.45,
        linewidths=thick / 4,
    )
    axes.hlines(
        y, first, third, label="middle half", colors=style.BLUE, alpha=0.55, linewidths=thick
    )
    axes.scatter(
        median,
        y,
        s=(0.95 * thick) ** 2,
        label="median",
        color="white",
        edgecolors=style.BLUE,
        linewidths=thick / 5,
        zorder=3,
    )
    axes.scatter(
        np.maximum(mean, floor),
        y,
        s=(0.9 * thick) ** 2,
        label="mean",
        color=style.ORANGE,
        marker="D",
        linewidths=0,
        zorder=4,
    )


def _weight_axis(axes: "Axes", low: float, high: float) -> float:
    """Set up a logarithmic axis around 1 and return its first tick, where smaller weights are."""
    scale = _FACTORS
    if low < 1 / 16 or high > 16:
        scale = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
    high = max(high, 2.0)
    floor = max([tick for tick in scale if tick <= min(low, 0.5)], default=scale[0])
    ticks = [tick for tick in scale if floor <= tick <= high * 1.05]
    axes.set_xscale("log")
    axes.set_xlim(floor / 1.08, high * 1.15)
    axes.set_xticks(ticks, _tick_names(ticks, low < floor))
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=style.FAINT, linewidth=0.8)
    return floor


def _tick_names(ticks: Sequence[float], has_lower: bool, has_higher: bool = False) -> list[str]:
    names = [f"{tick:g}\N{MULTIPLICATION SIGN}" for tick in ticks]
    if has_lower:
        names[0] = f"≤ {names[0]}"
    if has_higher:
        names[-1] = f"≥ {names[-1]}"
    return names


def _heat_map(figure: "Figure", axes: "Axes", means: _Floats, main: _Integers) -> None:
    """Draw the cells, the outlines of the main classes and the color bar."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    # without the ends of the color map, which are too dark for an outline
    shades = colormaps["RdBu_r"](np.linspace(0.1, 0.9, 256))
    colors = LinearSegmentedColormap.from_list("weight", shades).with_extremes(bad=style.NO_DATA)
    # at least from 1/2 to 2, so that weights close to uniform are pale
    span = 2.0 ** style.clipped(math.ceil(math.log2(max(np.nanmax(means), 1))), 1, 4)
    image = axes.imshow(
        np.ma.masked_invalid(means),
        cmap=colors,
        norm=LogNorm(1 / span, span, clip=True),
        aspect="auto",
        interpolation="nearest",
    )
    for start, stop in _runs_of(main):
        corner = (main[start] - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, 1, stop - start, fill=False, ec=style.INK, lw=1.2))
    width, height = figure.get_size_inches()
    length = style.clipped(1, 1.8 / height, 4.0 / height)
    beside = figure.add_axes((1 + 0.25 / width, 1 - length, 0.2 / width, length))
    bar = figure.colorbar(image, cax=beside)
    bar.set_label("weight relative to uniform", fontsize=style.TICK_SIZE, color=style.INK)
    ticks = [factor for factor in _FACTORS if 1 / span <= factor <= span]
    has_lower = bool(np.nanmin(means) < ticks[0])
    has_higher = bool(np.nanmax(means) > ticks[-1])
    bar.set_ticks(ticks, labels=_tick_names(ticks, has_lower, has_higher))
    bar.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=style.TICK_SIZE, colors=style.INK)
    bar.ax.spines[:].set_visible(False)
