"""Figures with a grid of axes of known size, in the style of a run's figures."""

from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# of Okabe and Ito, in an order in which neighbors also differ in gray
COLORS = (style.BLUE, style.ORANGE, "#009E73")
MARKERS = ("o", "s", "^")


def panel_grid(
    rows: int,
    columns: int,
    *,
    panel: tuple[float, float],
    gap: tuple[float, float],
    margins: tuple[float, float, float],
    title: str,
    note: str,
) -> tuple["Figure", list[list["Axes"]]]:
    """Creates a figure with a title, a note and a grid of axes; lengths are in inches.

    Args:
        rows: The number of rows.
        columns: The number of columns.
        panel: The width and height of each panel.
        gap: The space between columns and between rows.
        margins: The space to the left, to the right and below the grid.
        title: The title.
        note: The line below it.

    Returns:
        The figure, and its axes by row and column.
    """
    pitch = panel[0] + gap[0], panel[1] + gap[1]
    plot = columns * pitch[0] - gap[0], rows * pitch[1] - gap[1]
    left, right, bottom = margins
    figure, whole = style.canvas(plot, left, right, bottom, title, note)
    box = whole.get_position()
    whole.remove()
    width, height = figure.get_size_inches()
    grid = [
        [
            figure.add_axes(
                (
                    box.x0 + j * pitch[0] / width,
                    box.y0 + (rows - 1 - i) * pitch[1] / height,
                    panel[0] / width,
                    panel[1] / height,
                ),
                facecolor="white",
            )
            for j in range(columns)
        ]
        for i in range(rows)
    ]
    for axes in (axes for row in grid for axes in row):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, pad=4, colors=style.INK, labelsize=style.SMALL_TICK_SIZE)
        axes.set_axisbelow(True)
    return figure, grid


def panel_title(axes: "Axes", text: str) -> None:
    """Writes a title above the left edge of a panel."""
    place: dict[str, Any] = {"loc": "left", "pad": 5}
    axes.set_title(text, fontsize=style.LABEL_SIZE, color=style.INK, **place)


def frame(axes: "Axes") -> None:
    """Draws a thin frame around a panel and removes its ticks."""
    axes.spines[:].set(visible=True, color=style.NO_DATA, linewidth=0.8)
    axes.set_xticks([])
    axes.set_yticks([])
