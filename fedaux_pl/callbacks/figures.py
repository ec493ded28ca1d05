"""Pictures of a federation, made for TensorBoard's ``add_figure``.

- `partition_figure`: which client holds how much of which class.
- `certainty_figure`: how the say of each client in the ensemble is distributed over samples.
- `weight_by_class_figure`: the same by the true class of the samples, where that is known.
- `top_images_figure`: the auxiliary images that a client finds most like its own.

Each takes plain arrays or tensors and returns a ``matplotlib.figure.Figure`` that belongs to the
caller alone: pyplot, which keeps every figure alive until it is closed, is not used. Matplotlib
is imported when the first picture is made, because importing it takes long.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any] | Tensor
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_CLIENTS = 100
"""More rows or columns than this cannot be told apart: the first ones are shown."""

MAX_IMAGE_ROWS = 6
"""The most clients whose images are shown."""

# From Okabe and Ito's palette, which people with any colour vision tell apart.
_BLUE, _ORANGE = "#0072B2", "#D55E00"
_INK, _MUTED, _FAINT, _BAND = "#1f2933", "#5f6b7a", "#dfe3e8", "#f3f5f7"
_NO_DATA = "#c9ced6"

# Lengths are in inches and sizes of type in points throughout, at 100 pixels to the inch.
_TITLE_SIZE, _NOTE_SIZE, _LABEL_SIZE, _TICK_SIZE = 14.0, 10.0, 11.0, 9.5
_SMALL_TICK_SIZE = 8.0
_HEADER = 0.95  # inches above the axes for the title and the note
_EDGE = 0.15  # inches that stay empty along the border
_TIMES = "\N{MULTIPLICATION SIGN}"


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
    table = _integers(counts, "counts", ("n_clients", "n_classes"))
    if table.shape[1] != len(classes):
        raise ValueError(
            f"counts must have one column for each of the {len(classes)} classes, but have shape "
            f"{table.shape}"
        )
    if table.min() < 0:
        raise ValueError(f"counts must be at least 0, but the smallest is {table.min()}")
    shown = table[:MAX_CLIENTS]
    names = [_shorten(name) for name in classes]

    column = _clip(8.0 / len(shown), 0.08, 0.5)
    row = _clip(7.0 / len(names), 0.11, 0.38)
    tick_size = _TICK_SIZE if row >= _line_height(_TICK_SIZE) else _SMALL_TICK_SIZE
    axes = _canvas(
        plot=(column * len(shown), row * len(names)),
        left=_text_width(names, tick_size) + 0.6,
        right=1.2,
        bottom=0.65,
        title=f"{_number(len(table), 'client')}, {_number(int(table.sum()), 'sample')}"
        + _of_more(len(shown), len(table)),
        note="Who holds what: the area of a bubble is the number of samples",
    )
    area = _bubble_area(shown, min(column, row))
    clients, kinds = np.nonzero(shown)
    axes.scatter(
        clients,
        kinds,
        s=shown[clients, kinds] * area,
        color=_BLUE,
        alpha=1 if min(column, row) > 0.16 else 0.8,  # where cells are tiny, bubbles can overlap
        linewidths=0,
        clip_on=False,
    )
    _bubble_legend(axes, int(shown.max()), area)

    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    ids = _thinned(len(shown), column, 0.3)
    axes.set_xticks(ids, [str(i) for i in ids])
    labelled = _thinned(len(names), row, _line_height(tick_size))
    axes.set_yticks(labelled, [names[k] for k in labelled], fontsize=tick_size, parse_math=False)
    axes.set_xlabel("client", fontsize=_LABEL_SIZE, color=_INK)
    axes.set_ylabel("class", fontsize=_LABEL_SIZE, color=_INK)
    axes.grid(color=_FAINT, linewidth=0.6)
    return _figure(axes)


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
    weights, main = _weights(scores, client_classes, classes)
    order = np.argsort(main, kind="stable")
    row = _clip(6.4 / len(order), 0.08, 0.34)
    labels = _client_labels(order, main, classes, row)
    axes = _canvas(
        plot=(6.8, row * len(order)),
        left=_text_width([_LABEL_HEAD, *labels.values()], _TICK_SIZE) + 0.2,
        right=0.3,
        bottom=1.0,
        title="How much say each client has in the ensemble" + _of_more(len(order), len(scores)),
        note=r"Its weight $s_i(x)\;/\;\Sigma_j\,s_j(x)$ on "
        f"{_number(weights.shape[1], 'distillation sample')}, divided by that in a plain average",
    )
    _class_bands(axes, main[order])
    _weight_rows(axes, weights[order], row)
    _client_axis(axes, labels, len(order))
    axes.set_xlabel("weight relative to uniform", fontsize=_LABEL_SIZE, color=_INK)
    _figure(axes).legend(
        loc="lower center",
        ncols=5,
        frameon=False,
        fontsize=_TICK_SIZE,
        labelcolor=_INK,
        handletextpad=0.5,
        columnspacing=1.6,
    )
    return _figure(axes)


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
    weights, main = _weights(scores, client_classes, classes)
    truth = _class_indices(labels, "labels", weights.shape[1], "sample", classes)
    order = np.argsort(main, kind="stable")
    names = [_shorten(name) for name in classes]
    row = _clip(6.4 / len(order), 0.08, 0.34)
    column = _clip(7.0 / len(names), 0.08, 0.8)
    row_labels = _client_labels(order, main, classes, row)
    rotation = _rotation(names, column)
    below = 0.65 + math.sin(math.radians(rotation)) * _text_width(names, _TICK_SIZE)
    axes = _canvas(
        plot=(column * len(names), row * len(order)),
        left=_text_width([_LABEL_HEAD, *row_labels.values()], _TICK_SIZE) + 0.2,
        right=1.5,
        # the scale of the colours may be longer than the heat map
        bottom=max(below, 2.0 - row * len(order)),
        title="Who is listened to on which class" + _of_more(len(order), len(scores)),
        note=f"Mean weight on {_number(weights.shape[1], 'sample')}, divided by that in a plain "
        "average. Outlined: the client's main class",
    )
    _heat_map(axes, _mean_by_class(weights[order], truth, len(names)), main[order])
    if min(row, column) > 0.15:  # thinner cells would drown in lines
        axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
        axes.set_yticks(np.arange(0.5, len(order) - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
    _client_axis(axes, row_labels, len(order))
    labelled = _thinned(len(names), column, _line_height(_TICK_SIZE) if rotation else 0)
    axes.set_xticks(
        labelled,
        [names[k] for k in labelled],
        rotation=rotation,
        rotation_mode="anchor",
        ha="right" if rotation else "center",
        va="center" if rotation else "top",
        parse_math=False,
    )
    axes.set_xlabel("true class of the samples", fontsize=_LABEL_SIZE, color=_INK)
    return _figure(axes)


def top_images_figure(
    images: Array, scores: Array, client_names: Sequence[str], top: int = 8
) -> "Figure":
    """Draws the auxiliary images to which each client gives its highest scores.

    Args:
        images: The auxiliary images, uint8 of shape (N, C, H, W) with C = 1 or 3.
        scores: Certainty scores of K clients on them, shape (K, N).
        client_names: What to call the K clients.
        top: How many images of each client, fewer if there are fewer images.

    Returns:
        A figure with one row for each client, of the first `MAX_IMAGE_ROWS`, and its images in
        the order of descending score; of equal ones the first in the data comes first.

    Raises:
        ValueError: If the shapes do not match, images are not uint8 or not grey or RGB, a score
            is not finite, or top is less than 1.
    """
    table = _floats(scores, "scores", ("K", "N"))
    _check_images(images, table.shape[1])
    if len(client_names) != len(table):
        raise ValueError(
            f"client_names must name the {len(table)} clients of scores, but there are "
            f"{len(client_names)}"
        )
    if top < 1:
        raise ValueError(f"top must be at least 1, but is {top}")
    shown = table[:MAX_IMAGE_ROWS]
    ranking = np.argsort(-shown, axis=1, kind="stable")[:, :top]
    names = [
        textwrap.wrap(name, 16, max_lines=3, placeholder=" …") or [""]
        for name in client_names[: len(shown)]
    ]

    # One unit of the axes is an inch: an image with a gap to the next, and room for its score.
    height, width = images.shape[2:]
    scale = _clip(8.8 / ranking.shape[1], 0.7, 1.25) / max(height, width)
    tall, wide = height * scale, width * scale
    captions = [[_score(value) for value in row[k]] for row, k in zip(shown, ranking, strict=True)]
    widest = _text_width([caption for row in captions for caption in row], _TICK_SIZE)
    pitch = (max(wide + 0.08, widest + 0.1), tall + 0.32)
    plot = (pitch[0] * ranking.shape[1], pitch[1] * len(shown))
    axes = _canvas(
        plot=plot,
        left=_text_width([line for name in names for line in name], _LABEL_SIZE) + 0.1,
        right=0.05,
        bottom=0.05,
        title="What each client is most certain about" + _of_more(len(shown), len(table)),
        note="The highest certainty scores among "
        f"{_number(table.shape[1], 'auxiliary image')}, best first",
    )
    for i, best in enumerate(ranking):
        upper = i * pitch[1]
        axes.text(
            -0.12,
            upper + tall / 2,
            "\n".join(names[i]),
            ha="right",
            va="center",
            fontsize=_LABEL_SIZE,
            color=_INK,
            parse_math=False,
        )
        for j, k in enumerate(best):
            left = j * pitch[0] + (pitch[0] - wide) / 2
            _thumbnail(axes, _picture(images, int(k)), captions[i][j], left, upper, scale)
    axes.set(xlim=(0, plot[0]), ylim=(plot[1], 0), aspect="auto")
    axes.set_axis_off()
    return _figure(axes)


# ------------------------------------------------------------------------------------ arguments


def _plain(values: Array, name: str, axes: tuple[str, ...]) -> NDArray[Any]:
    """Brings an array or a tensor of any device to numpy and checks its shape."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16
        plain = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    else:
        plain = np.asarray(values)
    if plain.ndim != len(axes) or plain.size == 0:
        raise ValueError(
            f"{name} must have shape ({', '.join(axes)}{',' if len(axes) == 1 else ''}) with at "
            f"least one entry, but have shape {plain.shape}"
        )
    return plain


def _floats(values: Array, name: str, axes: tuple[str, ...]) -> Floats:
    plain = _plain(values, name, axes).astype(np.float64)
    if not np.isfinite(plain).all():
        raise ValueError(f"{name} must be finite, but hold {plain[~np.isfinite(plain)][0]}")
    return plain


def _integers(values: Array, name: str, axes: tuple[str, ...]) -> Integers:
    plain = _plain(values, name, axes)
    if not np.issubdtype(plain.dtype, np.integer):
        raise ValueError(f"{name} must be integers, but are {plain.dtype}")
    return plain.astype(np.int64)


def _class_indices(
    values: Array, name: str, count: int, of_what: str, classes: Sequence[str]
) -> Integers:
    """Checks that there is one class index for each sample or client."""
    indices = _integers(values, name, (f"n_{of_what}s",))
    if len(indices) != count:
        raise ValueError(
            f"{name} must have one entry for each of the {count} {of_what}s of scores, but have "
            f"{len(indices)}"
        )
    if indices.min() < 0 or indices.max() >= len(classes):
        raise ValueError(
            f"{name} must lie in 0..{len(classes) - 1}, as there are {len(classes)} classes, but "
            f"range from {indices.min()} to {indices.max()}"
        )
    return indices


def _check_images(images: Array, count: int) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images must have shape (N, C, H, W) with C = 1 or 3, but have {tuple(images.shape)}"
        )
    if images.dtype not in (torch.uint8, np.uint8):
        raise ValueError(f"images must be uint8, but are {images.dtype}")
    if images.shape[0] != count:
        raise ValueError(
            f"scores must have one column for each of the {images.shape[0]} images, but have "
            f"{count}"
        )


# -------------------------------------------------------------------------------------- weights


def _weights(
    scores: Array, client_classes: Array, classes: Sequence[str]
) -> tuple[Floats, Integers]:
    """Computes n s_i(x) / sum_j s_j(x), over all n clients, for the clients that are shown."""
    axes = ("n_clients", "n_samples")
    table = _plain(scores, "scores", axes)
    main = _class_indices(client_classes, "client_classes", len(table), "client", classes)
    total = np.zeros(table.shape[1])
    for start in range(0, len(table), MAX_CLIENTS):  # of many clients, never a wider copy of all
        part = _floats(table[start : start + MAX_CLIENTS], "scores", axes)
        if part.min() < 0:
            raise ValueError(f"scores must be at least 0, but the smallest is {part.min()}")
        total += part.sum(axis=0)
    if total.min() == 0:
        raise ValueError(
            f"sample {total.argmin()} has the score 0 from every client, so nobody has a share: "
            "scores must be positive"
        )
    shown = _floats(table[:MAX_CLIENTS], "scores", axes)
    return shown * (len(table) / total), main[:MAX_CLIENTS]


def _by_main_class(main: Integers) -> Integers:
    return np.argsort(main, kind="stable")


def _mean_by_class(weights: Floats, labels: Integers, n_classes: int) -> Floats:
    """Averages over the samples of each class; NaN where there are none."""
    member = labels[:, None] == np.arange(n_classes)
    sizes = member.sum(axis=0)
    means = np.full((len(weights), n_classes), np.nan)
    np.divide(weights @ member.astype(np.float64), sizes, out=means, where=sizes > 0)
    return means


# --------------------------------------------------------------------------- parts of a picture


def _canvas(
    plot: tuple[float, float], left: float, right: float, bottom: float, title: str, note: str
) -> "Axes":
    """Makes a figure with a title and one pair of axes of the given size.

    The axes are placed by hand because the size of bubbles and cells has to be known when they
    are drawn, which automatic layouts only settle afterwards.
    """
    from matplotlib.figure import Figure

    left += _EDGE
    headline = max(_text_width([title], _TITLE_SIZE, "bold"), _text_width([note], _NOTE_SIZE))
    width = max(left + plot[0] + right, headline + 2 * _EDGE)
    height = _HEADER + plot[1] + bottom
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    axes = figure.add_axes(
        (left / width, bottom / height, plot[0] / width, plot[1] / height), facecolor="white"
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=5, colors=_INK, labelsize=_TICK_SIZE)
    axes.set_axisbelow(True)
    x = _EDGE / width
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    style: dict[str, Any] = {"fontsize": _TITLE_SIZE, "fontweight": "bold", "color": _INK}
    figure.suptitle(title, x=x, y=1 - 0.12 / height, **place, **style)
    figure.text(x, 1 - 0.41 / height, note, place, fontsize=_NOTE_SIZE, color=_MUTED)
    return axes


def _figure(axes: "Axes") -> "Figure":
    from matplotlib.figure import Figure

    assert isinstance(axes.figure, Figure)  # noqa: S101 - there are no subfigures here
    return axes.figure


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

    style: dict[str, Any] = {"linestyle": "", "marker": "o", "color": _BLUE, "markeredgewidth": 0}
    examples = sorted({_round_down(largest / part) for part in (1, 4, 20)} - {0}, reverse=True)
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
            fontsize=_TICK_SIZE,
            title_fontsize=_TICK_SIZE,
            labelcolor=_INK,
            labelspacing=0.9,
            borderaxespad=0,
            borderpad=0.8,
            alignment="left",
        )


def _class_bands(axes: "Axes", main: Integers) -> None:
    """Shades the rows of every other main class, so that clients of the same one are seen."""
    for place, (start, stop) in enumerate(_runs(main)):
        if place % 2 == 0:
            axes.axhspan(start - 0.5, stop - 0.5, color=_BAND, linewidth=0, zorder=0)


def _weight_rows(axes: "Axes", weights: Floats, row: float) -> None:
    """Draws one line with the quantiles for each client."""
    quantiles = np.quantile(weights, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
    mean = weights.mean(axis=1)
    lowest, highest = quantiles[0].min(), max(quantiles[-1].max(), mean.max())
    floor = _weight_axis(axes, float(lowest), float(highest))
    low, first, median, third, high = np.maximum(quantiles, floor)

    y = np.arange(len(weights))
    thick = _clip(72 * row * 0.42, 2.5, 8.0)
    axes.axvline(1, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)), label="equal say")
    thin: dict[str, Any] = {"colors": _BLUE, "alpha": 0.45, "linewidths": thick / 4}
    axes.hlines(y, low, high, label="5-95 % of samples", **thin)
    bar: dict[str, Any] = {"colors": _BLUE, "alpha": 0.55, "linewidths": thick}
    axes.hlines(y, first, third, label="middle half", **bar)
    ring: dict[str, Any] = {
        "color": "white",
        "edgecolors": _BLUE,
        "linewidths": thick / 5,
        "zorder": 3,
    }
    axes.scatter(median, y, s=(0.95 * thick) ** 2, label="median", **ring)
    diamond: dict[str, Any] = {"color": _ORANGE, "marker": "D", "linewidths": 0, "zorder": 4}
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
    names = [f"{tick:g}{_TIMES}" for tick in ticks]
    if low < floor:
        names[0] = f"≤ {names[0]}"
    axes.set_xscale("log")
    axes.set_xlim(floor / 1.08, high * 1.15)
    axes.set_xticks(ticks, names)
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=_FAINT, linewidth=0.8)
    return floor


def _heat_map(axes: "Axes", means: Floats, main: Integers) -> None:
    """Draws the cells, the outlines of the main classes and the scale of the colours."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    # The ends of the map are too dark for an outline to be seen on them.
    shades = colormaps["RdBu_r"](np.linspace(0.1, 0.9, 256))
    colours = LinearSegmentedColormap.from_list("weight", shades).with_extremes(bad=_NO_DATA)
    # Never narrower than half to twice: pale colours shall mean that the scores say little.
    span = 2.0 ** _clip(math.ceil(math.log2(max(np.nanmax(means), 1))), 1, 4)
    image = axes.imshow(
        np.ma.masked_invalid(means),
        cmap=colours,
        norm=LogNorm(1 / span, span, clip=True),
        aspect="auto",
        interpolation="nearest",
    )
    for start, stop in _runs(main):
        corner = (main[start] - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, 1, stop - start, fill=False, ec=_INK, lw=1.2))

    figure, box = _figure(axes), axes.get_position()
    width, height = figure.get_size_inches()
    length = _clip(box.height, 1.8 / height, 4.0 / height)
    place = (box.x1 + 0.25 / width, box.y1 - length, 0.2 / width, length)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_label("weight relative to uniform", fontsize=_TICK_SIZE, color=_INK)
    ticks = [2.0**k for k in range(-4, 5) if 1 / span <= 2.0**k <= span]
    names = [f"{tick:.3g}{_TIMES}" for tick in ticks]
    if np.nanmin(means) < ticks[0]:
        names[0] = f"≤ {names[0]}"
    if np.nanmax(means) > ticks[-1]:
        names[-1] = f"≥ {names[-1]}"
    bar.set_ticks(ticks, labels=names)
    bar.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=_TICK_SIZE, colors=_INK)
    bar.ax.spines[:].set_visible(False)


def _thumbnail(
    axes: "Axes", picture: NDArray[np.uint8], caption: str, left: float, upper: float, scale: float
) -> None:
    """Draws a picture, `scale` units of the axes a pixel, with a caption below."""
    right, lower = left + scale * picture.shape[1], upper + scale * picture.shape[0]
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=(left, right, lower, upper))
    axes.text(
        (left + right) / 2,
        lower + 0.03,
        caption,
        ha="center",
        va="top",
        fontsize=_TICK_SIZE,
        color=_MUTED,
    )


def _picture(images: Array, index: int) -> NDArray[np.uint8]:
    """Takes one image as (H, W) or (H, W, 3)."""
    image = images[index]
    plain = image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    return plain[0] if len(plain) == 1 else plain.transpose(1, 2, 0)


# --------------------------------------------------------------------------------------- labels


_LABEL_HEAD = "main class · client"


def _client_labels(
    order: Integers, main: Integers, classes: Sequence[str], row: float
) -> dict[float, str]:
    """Names every row where there is room, otherwise every group of clients with one class."""
    if row >= _line_height(_TICK_SIZE):
        return {y: f"{_shorten(classes[main[i]])} · {i}" for y, i in enumerate(order)}
    labels: dict[float, str] = {}
    last = -math.inf
    for start, stop in _runs(main[order]):
        middle = (start + stop - 1) / 2
        if (middle - last) * row >= _line_height(_TICK_SIZE):
            labels[middle] = _shorten(classes[main[order[start]]])
            last = middle
    return labels


def _client_axis(axes: "Axes", labels: dict[float, str], rows: int) -> None:
    """Writes the labels of the rows, and above them what they are."""
    head = _LABEL_HEAD if " · " in next(iter(labels.values())) else "main class"
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(list(labels), list(labels.values()), parse_math=False)
    axes.annotate(
        head,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(-5, 5),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=_TICK_SIZE,
        color=_MUTED,
    )


def _runs(values: Integers) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each run of equal values."""
    return pairwise([0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)])


def _rotation(names: Sequence[str], column: float) -> float:
    """Turns labels below columns only as far as they need, since turned text is hard to read."""
    if _text_width(names, _TICK_SIZE) + 0.08 <= column:
        return 0
    return 35 if column >= 2 * _line_height(_TICK_SIZE) else 90


def _thinned(count: int, pitch: float, needed: float) -> list[int]:
    """Chooses every k-th place, k a round number, so that each label has the inches it needs."""
    step = next((k for k in (1, 2, 5, 10, 20, 50) if k * pitch >= needed), 100)
    return list(range(0, count, step))


def _line_height(size: float) -> float:
    """The height of one line of text with the space to the next."""
    return size * 1.25 / 72


def _text_width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """The width of the widest of some lines."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    widths = [text_to_path.get_text_width_height_descent(t, font, ismath=False)[0] for t in texts]
    return float(max(widths)) / 72


def _shorten(name: str, length: int = 22) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _of_more(shown: int, total: int) -> str:
    return "" if shown == total else f" (the first {shown} of {total:,} clients shown)"


def _score(value: float) -> str:
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"


def _round_down(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is not above a value, or 0."""
    if value < 1:
        return 0
    power: int = 10 ** math.floor(math.log10(value))
    return power * max(k for k in (1, 2, 5) if k * power <= value)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
