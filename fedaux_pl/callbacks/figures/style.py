"""How figures look: colours, sizes of type, and the room that labels take."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures.arrays import Integers, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From Okabe and Ito's palette, which people with any colour vision tell apart.
BLUE, ORANGE = "#0072B2", "#D55E00"
INK, MUTED, FAINT, BAND = "#1f2933", "#5f6b7a", "#dfe3e8", "#f3f5f7"
NO_DATA = "#c9ced6"

# Lengths are in inches and sizes of type in points throughout, at 100 pixels to the inch.
_TITLE_SIZE, _NOTE_SIZE, LABEL_SIZE, TICK_SIZE = 14.0, 10.0, 11.0, 9.5
SMALL_TICK_SIZE = 8.0
_HEADER = 0.95  # inches above the axes for the title and the note
_EDGE = 0.15  # inches that stay empty along the border
TIMES = "\N{MULTIPLICATION SIGN}"


def canvas(
    plot: tuple[float, float], left: float, right: float, bottom: float, title: str, note: str
) -> "Axes":
    """Makes a figure with a title and one pair of axes of the given size.

    The axes are placed by hand because the size of bubbles and cells has to be known when they
    are drawn, which automatic layouts only settle afterwards.
    """
    from matplotlib.figure import Figure

    left += _EDGE
    headline = max(text_width([title], _TITLE_SIZE, "bold"), text_width([note], _NOTE_SIZE))
    width = max(left + plot[0] + right, headline + 2 * _EDGE)
    height = _HEADER + plot[1] + bottom
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    axes = figure.add_axes(
        (left / width, bottom / height, plot[0] / width, plot[1] / height), facecolor="white"
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=5, colors=INK, labelsize=TICK_SIZE)
    axes.set_axisbelow(True)
    x = _EDGE / width
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    style: dict[str, Any] = {"fontsize": _TITLE_SIZE, "fontweight": "bold", "color": INK}
    figure.suptitle(title, x=x, y=1 - 0.12 / height, **place, **style)
    figure.text(x, 1 - 0.41 / height, note, place, fontsize=_NOTE_SIZE, color=MUTED)
    return axes


def figure_of(axes: "Axes") -> "Figure":
    """The figure that axes belong to."""
    from matplotlib.figure import Figure

    assert isinstance(axes.figure, Figure)  # noqa: S101 - there are no subfigures here
    return axes.figure


LABEL_HEAD = "main class · client"


def client_labels(
    order: Integers, main: Integers, classes: Sequence[str], row: float
) -> dict[float, str]:
    """Names every row where there is room, otherwise every group of clients with one class."""
    if row >= line_height(TICK_SIZE):
        return {y: f"{shorten(classes[main[i]])} · {i}" for y, i in enumerate(order)}
    labels: dict[float, str] = {}
    last = -math.inf
    for start, stop in runs_of(main[order]):
        middle = (start + stop - 1) / 2
        if (middle - last) * row >= line_height(TICK_SIZE):
            labels[middle] = shorten(classes[main[order[start]]])
            last = middle
    return labels


def client_axis(axes: "Axes", labels: dict[float, str], rows: int) -> None:
    """Writes the labels of the rows, and above them what they are."""
    head = LABEL_HEAD if " · " in next(iter(labels.values())) else "main class"
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
        fontsize=TICK_SIZE,
        color=MUTED,
    )


def tick_rotation(names: Sequence[str], column: float) -> float:
    """Turns labels below columns only as far as they need, since turned text is hard to read."""
    if text_width(names, TICK_SIZE) + 0.08 <= column:
        return 0
    return 35 if column >= 2 * line_height(TICK_SIZE) else 90


def thinned(count: int, pitch: float, needed: float) -> list[int]:
    """Chooses every k-th place, k a round number, so that each label has the inches it needs."""
    step = next((k for k in (1, 2, 5, 10, 20, 50) if k * pitch >= needed), 100)
    return list(range(0, count, step))


def line_height(size: float) -> float:
    """The height of one line of text with the space to the next."""
    return size * 1.25 / 72


def text_width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """The width of the widest of some lines."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    widths = [text_to_path.get_text_width_height_descent(t, font, ismath=False)[0] for t in texts]
    return float(max(widths)) / 72


def shorten(name: str, length: int = 22) -> str:
    """A name that is not too long for a tick."""
    return name if len(name) <= length else name[: length - 1] + "…"


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def of_more(shown: int, total: int) -> str:
    """What a title says where not all clients are shown."""
    return "" if shown == total else f" (the first {shown} of {total:,} clients shown)"


def score_text(value: float) -> str:
    """A number in as many digits as tell it from others."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.1e}"
