"""The table that a run prints before its first round: what leaves a client, and what it costs."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from fedaux_pl.names import terminal_safe
from fedaux_pl.scoring import Guarantee

PAGE = "docs/privacy.md"
"""The page that explains the table."""

_HEADER = (f"what leaves a client ({PAGE})", "guarantee", "cost (epsilon, delta)")
_WIDTHS = (56, 29, 30)  # of the columns, in characters


def format_guarantees(rows: Sequence[Guarantee]) -> str:
    """Return aligned columns; long texts continue on the next line of their column.

    Examples:
        >>> print(format_guarantees([Guarantee("every round: its model and its training loss")]))
        what leaves a client (docs/privacy.md)        guarantee    cost (epsilon, delta)
        every round: its model and its training loss  NOT private  unlimited
    """
    lines: list[tuple[str, ...]] = []
    for row in (_HEADER, *(as_cells(row) for row in rows)):
        pairs = zip(row, _WIDTHS, strict=True)
        columns = [_wrap(terminal_safe(text), width) for text, width in pairs]
        lines += zip_longest(*columns, fillvalue="")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        texts.append("  ".join(padded).rstrip())
    return "\n".join(texts)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ")


def as_cells(row: Guarantee) -> tuple[str, str, str]:
    """Return the columns of a row."""
    return row.sent, row.guarantee, row.cost
