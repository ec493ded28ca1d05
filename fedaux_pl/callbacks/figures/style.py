"""The style of figures: colors, font sizes, axes and labels."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures.arrays import Integers, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# from the palette of Okabe and Ito, which is distinguishable with any color vision
BLUE, ORANGE = "#0072B2", "#D55E00"
INK, MUTED, FAINT, BAND = "#1f2933", "#5f6b7a", "#dfe3e8", "#f3f5f7"
NO_DATA = "#c9ced6"

# lengths are in inches and font sizes in points, at 100 pixels per inch
_TITLE_SIZE, _NOTE_SIZE, LABEL_SIZE, TICK_SIZE = 14.0, 10.0, 11.0, 9.5
SMALL_TICK_SIZE = 8.0
_HEADER = 0.95  # inches above the axes for the title and the note
_EDGE = 0.15  # inches of the empty border
TIMES = "\N{MULTIPLICATION SIGN}"


def canvas(
    plot: tuple[float, float], left: float, right: float, bottom: float, title: str, note: str
) -> tuple["Figure", "Axes"]:
    """Creates a figure with a title, a note and axes of the given size; lengths are in inches.

    The position of the axes is computed here: the size of bubbles and cells must be known when
    they are drawn, before an automatic layout would determine it.
    """
    from matplotlib.figure import Figure

    left += _EDGE
    headline = max(text_width([title], _TITLE_SIZE, "bold"), text_width([note], _NOTE_SIZE))
    width = max(left + plot[0] + right, headline + 2 * _EDGE)
    height = _HEADER + plot[1] + bottom
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    box = (left / width, bottom / height, plot[0] / width, plot[1] / height)
    axes = figure.add_axes(box, facecolor="white")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=5, colors=INK, labelsize=TICK_SIZE)
    axes.set_axisbelow(True)
    x = _EDGE / width
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    style: dict[str, Any] = {"fontsize": _TITLE_SIZE, "fontweight": "bold", "color": INK}
    figure.suptitle(title, x=x, y=1 - 0.12 / height, **place, **style)
    figure.text(x, 1 - 0.41 / height, note, place, fontsize=_NOTE_SIZE, color=MUTED)
    return figure, axes


def class_axis(axes: "Axes", names: Sequence[str], column: float, rotation: float) -> None:
    """Labels the columns of a table by classes or clients, as many as have room.

    Args:
        axes: The axes, with a column at each integer.
        names: The names, shortened.
        column: The width of a column in inches.
        rotation: See ``tick_rotation``.
    """
    ticks = thinned(len(names), column, line_height(TICK_SIZE) if rotation else 0)
    axes.set_xticks(
        ticks,
        [names[k] for k in ticks],
        rotation=rotation,
        rotation_mode="anchor",
        ha="right" if rotation else "center",
        va="center" if rotation else "top",
        parse_math=False,
    )


LABEL_HEAD = "main class · client"


def client_labels(
    order: Integers,
    main: Integers,
    classes: Sequence[str],
    row: float,
    client_names: Sequence[str] | None,
) -> dict[float, str]:
    """Labels by row: one for each client or, if rows are small, one for each main class."""
    if row >= line_height(TICK_SIZE):
        names = [str(i) if client_names is None else shorten(client_names[i]) for i in order]
        return {
            y: f"{shorten(classes[main[i]])} · {name}"
            for y, (i, name) in enumerate(zip(order, names, strict=True))
        }
    labels: dict[float, str] = {}
    last = -math.inf
    for start, stop in runs_of(main[order]):
        middle = (start + stop - 1) / 2
        if (middle - last) * row >= line_height(TICK_SIZE):
            labels[middle] = shorten(classes[main[order[start]]])
            last = middle
    return labels


def client_axis(axes: "Axes", labels: dict[float, str], rows: int) -> None:
    """Writes the labels of the rows and a heading above them."""
    head = LABEL_HEAD if " · " in next(iter(labels.values())) else "main class"
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(list(labels), list(labels.values()), parse_math=False)
    style: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": TICK_SIZE, "color": MUTED}
    axes.annotate(head, (0, 1), (-5, 5), "axes fraction", "offset points", **style)


def tick_rotation(names: Sequence[str], column: float) -> float:
    """The smallest rotation of labels, in degrees, at which they fit below their columns."""
    if text_width(names, TICK_SIZE) + 0.08 <= column:
        return 0
    return 35 if column >= 2 * line_height(TICK_SIZE) else 90


def thinned(count: int, pitch: float, needed: float) -> list[int]:
    """Every k-th of ``count`` positions, k a round number, so that labels do not overlap.

    Args:
        count: The number of positions.
        pitch: The inches between two positions.
        needed: The inches that a label needs.
    """
    step = next((k for k in (1, 2, 5, 10, 20, 50) if k * pitch >= needed), 100)
    return list(range(0, count, step))


def line_height(size: float) -> float:
    """The height of a line of text in inches, with its spacing."""
    return size * 1.25 / 72


def text_width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """The width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    widths = [text_to_path.get_text_width_height_descent(t, font, ismath=False)[0] for t in texts]
    return float(max(widths)) / 72


def shorten(name: str, length: int = 22) -> str:
    """The name, cut to a length that fits a tick."""
    return name if len(name) <= length else name[: length - 1] + "…"


def of_more(shown: int, total: int) -> str:
    """The end of a title if not all clients are shown; otherwise empty."""
    return "" if shown == total else f" (the first {shown} of {total:,} clients shown)"


def score_text(value: float) -> str:
    """A score with three digits, or in scientific notation."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"
