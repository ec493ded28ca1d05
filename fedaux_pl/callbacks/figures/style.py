"""What figures share: colors, font sizes, the canvas, the labels of rows and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.names import terminal_safe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[Any] | Tensor

MAX_CLIENTS = 100
"""The maximum number of clients in a figure; of more clients the first ones are shown."""

# Okabe and Ito's without yellow, which is faint on white, and black, which is the reference's; and
# dark ones of Tol's, so that nine methods have nine colors
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7A7A7A",
    "#332288",
    "#882255",
)
# from the palette of Okabe and Ito, which is distinguishable with any color vision
BLUE = "#0072B2"
ORANGE = "#D55E00"
INK = "#1f2933"
MUTED = "#5f6b7a"
FAINT = "#dfe3e8"
BAND = "#f3f5f7"
NO_DATA = "#c9ced6"

# lengths are in inches and font sizes in points, at 100 pixels per inch
LABEL_SIZE = 11.0
TICK_SIZE = 9.5
SMALL_TICK_SIZE = 8.0
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": TICK_SIZE, "labelcolor": INK}


def canvas(
    width: float, height: float, title: str, note: str, has_formula: bool = False
) -> tuple["Figure", "Axes"]:
    """Create a figure with axes of this size in inches, below a title and a note.

    The axes fill the figure: labels and legends lie outside of it, and whoever saves it asks for
    ``bbox_inches="tight"``. So the size of bubbles and cells does not depend on the labels. The
    note may have a formula, unless it has names.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), facecolor="white")
    plain_axes(axes, pad=5)
    axes.set_axisbelow(True)
    place: dict[str, Any] = {"x": 0, "ha": "left", "va": "top"}
    figure.suptitle(
        title,
        y=1 + 0.83 / height,
        fontsize=14.0,
        fontweight="bold",
        color=INK,
        parse_math=False,
        **place,
    )
    figure.text(
        s=note, y=1 + 0.54 / height, fontsize=10.0, color=MUTED, parse_math=has_formula, **place
    )
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
    if values.dtype == torch.bfloat16:
        values = values.float()
    return np.asarray(values)


def clipped(value: float, low: float, high: float) -> float:
    """Return the value, limited to low ... high."""
    return min(max(value, low), high)


def row_ticks(axes: "Axes", names: Sequence[str], row: float) -> list[int]:
    """Label as many rows of the height ``row`` as have room, and return their indices."""
    ticks = thinned(len(names), row, line_height(TICK_SIZE))
    axes.set_yticks(ticks, [names[k] for k in ticks], parse_math=False)
    return ticks


def column_ticks(axes: "Axes", names: Sequence[str], column: float) -> None:
    """Label as many columns of the width ``column`` as have room, rotated if they must be."""
    place: dict[str, Any] = {"ha": "center", "va": "top"}
    needed = text_width(names, TICK_SIZE) + 0.08
    if needed > column and not names[0].isdecimal():  # of numbers, some suffice
        needed = line_height(TICK_SIZE)
        place = {"ha": "right", "va": "center", "rotation_mode": "anchor"}
        place["rotation"] = 35 if column >= 2 * needed else 90
    ticks = thinned(len(names), column, needed)
    axes.set_xticks(ticks, [names[k] for k in ticks], parse_math=False, **place)


def separate_cells(axes: "Axes", columns: int, rows: int, first: int = 0) -> None:
    """Draw white lines between the cells of a table, whose columns count from ``first``."""
    axes.set_xticks([first + k + 0.5 for k in range(columns - 1)], minor=True)
    axes.set_yticks([k + 0.5 for k in range(rows - 1)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def thinned(count: int, pitch: float, needed: float) -> list[int]:
    """Return every k-th of ``count`` places ``pitch`` apart, so that each has ``needed`` inches."""
    step = next((k for k in (1, 2, 5, 10, 20, 50) if k * pitch >= needed), 100)
    return list(range(0, count, step))


def line_height(size: float) -> float:
    """Return the height of a line of text in inches, with its spacing."""
    return size * 1.25 / 72


def text_width(texts: Sequence[str], size: float) -> float:
    """Return the width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    widths = [text_to_path.get_text_width_height_descent(t, font, ismath=False)[0] for t in texts]
    return float(max(widths)) / 72


def cut(name: str, length: int = 22) -> str:
    """Return the name on one line, cut to a length that fits a tick."""
    shown = terminal_safe(name)
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def of_more(shown: int, total: int) -> str:
    """Return the end of a title if not all clients are shown; otherwise empty."""
    return "" if shown == total else f" (the first {shown} of {total:,} clients shown)"
