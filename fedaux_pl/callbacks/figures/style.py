"""What figures share: colors, font sizes, the canvas, the labels of rows and columns."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any] | Tensor

MAX_CLIENTS = 100
"""The maximum number of clients in a figure; of more clients the first ones are shown."""

# Okabe and Ito's without yellow, which is faint on white, and black, which is the reference's; and
# dark ones of Tol's, so that nine methods have nine colors
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A"),
    *("#332288", "#882255"),
)
# from the palette of Okabe and Ito, which is distinguishable with any color vision
BLUE, ORANGE = "#0072B2", "#D55E00"
INK, MUTED, FAINT, BAND = "#1f2933", "#5f6b7a", "#dfe3e8", "#f3f5f7"
NO_DATA = "#c9ced6"

# lengths are in inches and font sizes in points, at 100 pixels per inch
_TITLE_SIZE, _NOTE_SIZE, LABEL_SIZE, TICK_SIZE = 14.0, 10.0, 11.0, 9.5
SMALL_TICK_SIZE = 8.0
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": TICK_SIZE, "labelcolor": INK}
_HEADER = 0.95  # inches above the axes for the title and the note
_EDGE = 0.15  # inches of the empty border


def canvas(
    plot: tuple[float, float], margins: tuple[float, float, float], title: str, note: str
) -> tuple["Figure", "Axes"]:
    """Create a figure with axes of the size ``plot`` and margins left, right and below, in inches.

    The size of bubbles and cells must be known before an automatic layout would determine it.
    """
    from matplotlib.figure import Figure

    left, right, bottom = margins
    left += _EDGE
    headline = max(text_width([title], _TITLE_SIZE, "bold"), text_width([note], _NOTE_SIZE))
    width = max(left + plot[0] + right, headline + 2 * _EDGE)
    height = _HEADER + plot[1] + bottom
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    box = (left / width, bottom / height, plot[0] / width, plot[1] / height)
    axes = figure.add_axes(box, facecolor="white")
    plain_axes(axes, pad=5)
    axes.set_axisbelow(True)
    x = _EDGE / width
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    style: dict[str, Any] = {"fontsize": _TITLE_SIZE, "fontweight": "bold", "color": INK}
    figure.suptitle(title, x=x, y=1 - 0.12 / height, **place, **style)
    figure.text(x, 1 - 0.41 / height, note, place, fontsize=_NOTE_SIZE, color=MUTED)
    return figure, axes


def plain_axes(axes: "Axes", **ticks: Any) -> None:
    """Remove the frame and the ticks, and set sizes and colors of the labels."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK, labelsize=TICK_SIZE, **ticks)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontsize=LABEL_SIZE, color=INK)


def to_numpy(values: Array) -> NDArray[Any]:
    """Convert a tensor on any device; numpy has no bfloat16."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    plain: NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return plain


def clipped(value: float, low: float, high: float) -> float:
    """Return the value, limited to low ... high."""
    return min(max(value, low), high)


def row_ticks(axes: "Axes", names: Sequence[str], row: float, size: float = TICK_SIZE) -> list[int]:
    """Label as many rows of the height ``row`` as have room, and return their indices."""
    ticks = thinned(len(names), row, line_height(size))
    axes.set_yticks(ticks, [names[k] for k in ticks], fontsize=size, parse_math=False)
    return ticks


def column_ticks(axes: "Axes", names: Sequence[str], column: float) -> None:
    """Label as many columns of the width ``column`` as have room."""
    rotation = _rotation(names, column)
    ticks = thinned(len(names), column, line_height(TICK_SIZE) if rotation else 0)
    place: dict[str, Any] = {"ha": "center", "va": "top"}
    if rotation:
        place = {"ha": "right", "va": "center", "rotation": rotation, "rotation_mode": "anchor"}
    axes.set_xticks(ticks, [names[k] for k in ticks], parse_math=False, **place)


def depth(names: Sequence[str], column: float) -> float:
    """Return the height of the labels below columns, with the name of the axis."""
    return 0.65 + math.sin(math.radians(_rotation(names, column))) * text_width(names, TICK_SIZE)


def separate_cells(axes: "Axes", columns: int, rows: int, first: int = 0) -> None:
    """Draw white lines between the cells of a table, whose columns count from ``first``."""
    axes.set_xticks([first + k + 0.5 for k in range(columns - 1)], minor=True)
    axes.set_yticks([k + 0.5 for k in range(rows - 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def _rotation(names: Sequence[str], column: float) -> float:
    """Return the smallest rotation, in degrees, at which labels fit below their columns."""
    if text_width(names, TICK_SIZE) + 0.08 <= column:
        return 0
    return 35 if column >= 2 * line_height(TICK_SIZE) else 90


def thinned(count: int, pitch: float, needed: float) -> list[int]:
    """Return every k-th of ``count`` places ``pitch`` apart, so that each has ``needed`` inches."""
    step = next((k for k in (1, 2, 5, 10, 20, 50) if k * pitch >= needed), 100)
    return list(range(0, count, step))


def line_height(size: float) -> float:
    """Return the height of a line of text in inches, with its spacing."""
    return size * 1.25 / 72


def text_width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """Return the width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    widths = [text_to_path.get_text_width_height_descent(t, font, ismath=False)[0] for t in texts]
    return float(max(widths)) / 72


def shorten(name: str, length: int = 22) -> str:
    """Return the name, cut to a length that fits a tick."""
    return name if len(name) <= length else name[: length - 1] + "…"


def of_more(shown: int, total: int) -> str:
    """Return the end of a title if not all clients are shown; otherwise empty."""
    return "" if shown == total else f" (the first {shown} of {total:,} clients shown)"
