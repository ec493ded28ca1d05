"""Draw docs/assets/sends.svg: what leaves a client, by method, and whether it is private.

python tools/draw_sends.py docs/assets/sends.svg
"""

import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape


class Cell(NamedTuple):
    """What a client sends, in two lines of text, and whether a guarantee covers it."""

    lines: tuple[str, ...]
    kind: str


def private(*lines: str) -> Cell:
    """Return a cell whose content is differentially private if its noise is secret."""
    return Cell((*lines, "private"), "private")


def in_the_clear(*lines: str) -> Cell:
    """Return a cell whose content no guarantee covers."""
    return Cell((*lines, "NOT private"), "open")


NOTHING = Cell(("nothing",), "nothing")
METHODS = {
    ("FedAVG, FedPROX,", "FedAvgM, FedAdam"): (NOTHING, in_the_clear("trained model")),
    ("FedDF, FedBE, FedBN",): (NOTHING, in_the_clear("trained model")),
    ("SCAFFOLD",): (NOTHING, in_the_clear("model, variate")),
    ("FedAUX",): (private("one vector"), in_the_clear("trained model")),
    ("FedAUX,", "class statistics"): (private("class statistics"), in_the_clear("trained model")),
    ("FedClassMeans",): (private("class statistics"), NOTHING),
    ("FedCOF",): (private("sums by class"), NOTHING),
    ("FedAUXfdp",): (private("vector, classifier"), NOTHING),
}
STYLES = {  # fill, stroke, text
    "private": ("#dcf3e3", "#18713a", "#125a2d"),
    "open": ("#fde5d8", "#b93a06", "#9a3005"),
    "nothing": ("#ffffff", "#8b949e", "#57606a"),
}
WIDTH = 540
COLUMNS = (14, 212, 372)
CELL_WIDTH = 154
ROW_HEIGHT = 60
TOP = 62
FONT = "-apple-system, 'Segoe UI', 'Liberation Sans', Helvetica, Arial, sans-serif"


def draw_text(x: float, y: float, text: str, options: str = "") -> str:
    """Return a line of text at a place."""
    return f'<text x="{x:g}" y="{y:g}"{options}>{escape(text)}</text>'


def draw_cell(x: float, y: float, cell: Cell) -> list[str]:
    """Return a box with its lines; the last line of a box with a guarantee or without is bold."""
    fill, stroke, ink = STYLES[cell.kind]
    dashes = ' stroke-dasharray="6 4"' if cell.kind == "open" else ""
    box = f'<rect x="{x}" y="{y + 4}" width="{CELL_WIDTH}" height="{ROW_HEIGHT - 8}" rx="8"'
    parts = [f'{box} fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dashes}/>']
    for number, line in enumerate(cell.lines):
        middle = y + ROW_HEIGHT / 2 + 5 + 20 * (number - (len(cell.lines) - 1) / 2)
        weight = ' font-weight="bold"' if number else ""
        options = f' text-anchor="middle" fill="{ink}"{weight}'
        parts.append(draw_text(x + CELL_WIDTH / 2, middle, line, options))
    return parts


def draw() -> str:
    """Return the drawing as SVG."""
    height = TOP + ROW_HEIGHT * len(METHODS) + 76
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="{FONT}" font-size="16" fill="#1f2328">',
        "<title>What leaves a client, by method, and whether it is private</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="12" fill="#fff"/>',
        draw_text(COLUMNS[0], 28, "A client sends", ' font-weight="bold"'),
        draw_text(COLUMNS[1], 28, "before round 1", ' font-weight="bold"'),
        draw_text(COLUMNS[1], 49, "1 or 2 messages", ' fill="#57606a"'),
        draw_text(COLUMNS[2], 28, "in every round", ' font-weight="bold"'),
        draw_text(COLUMNS[2], 49, "it takes part in", ' fill="#57606a"'),
    ]
    for row, (names, cells) in enumerate(METHODS.items()):
        y = TOP + ROW_HEIGHT * row
        parts.append(f'<path d="M{COLUMNS[0]} {y} H{WIDTH - 14}" stroke="#d0d7de"/>')
        for number, name in enumerate(names):
            middle = y + ROW_HEIGHT / 2 + 5 + 20 * (number - (len(names) - 1) / 2)
            parts.append(draw_text(COLUMNS[0], middle, name))
        for x, cell in zip(COLUMNS[1:], cells, strict=True):
            parts += draw_cell(x, y, cell)
    bottom = TOP + ROW_HEIGHT * len(METHODS)
    parts += [
        f'<path d="M{COLUMNS[0]} {bottom} H{WIDTH - 14}" stroke="#d0d7de"/>',
        draw_text(
            COLUMNS[0], bottom + 26, "Private: (ε, δ)-differentially, if the noise is secret."
        ),
        draw_text(
            COLUMNS[0], bottom + 49, "All methods also send the number of records, without noise."
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(), encoding="utf-8")
