"""What a report consists of: tables and figures, each with a caption."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TableItem:
    """A table of a report.

    Attributes:
        name: The stem of its files, such as ``accuracy``.
        caption: What it shows, in one or two sentences.
        header: The names of the columns; several lines for columns of several axes.
        rows: The texts of the entries; the first column names the row.
        bold: The entries (row, column) in bold.
    """

    name: str
    caption: str
    header: Sequence[Sequence[str]]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = field(default_factory=frozenset)


@dataclass(frozen=True)
class FigureItem:
    """A figure of a report.

    Attributes:
        name: The stem of its files.
        caption: What it shows, in one or two sentences.
        figure: The figure of matplotlib.
    """

    name: str
    caption: str
    figure: "Figure"


Item = TableItem | FigureItem
