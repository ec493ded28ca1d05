"""A table as Markdown, CSV, LaTeX, HTML and text for a terminal."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedaux_pl.files import csv_text

PAPER = "paper"
"""The label of columns with published values."""

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "[": "{[}", "*": "{*}",  # after the end of a line these are its options
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---", "…": r"\ldots{}", "·": r"$\cdot$",  # noqa: RUF001
    "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "√": r"$\surd$", "→": r"$\to$", "∑": r"$\sum$",
    "α": r"$\alpha$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "μ": r"$\mu$",  # noqa: RUF001
    "⁵": "$^5$", "⁶": "$^6$", "⁻": "$^-$", "²": "$^2$", "✓": "yes", "✗": "no",
}  # fmt: skip
_LATEX_WIDTH = 120  # characters: a page of LaTeX has 80 at 10 pt
_LATEX_FIT = (
    r"\resizebox*{!}{\ifdim\totalheight>.8\textheight .8\textheight\else\totalheight\fi}{%",
    r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
)


@dataclass(frozen=True)
class TableItem:
    """A table of a report."""

    name: str  # the stem of its files, such as accuracy
    caption: str
    header: Sequence[Sequence[str]]  # the names of the columns; a line for each of their axes
    rows: Sequence[Sequence[str]]  # the first column names the row
    bold: frozenset[tuple[int, int]] = frozenset()  # entries (row, column)


def escape_latex(text: str) -> str:
    r"""Escape the characters that LaTeX would interpret, or does not have.

    Examples:
        >>> escape_latex("10 % of D_i ± 1")
        '10 \\% of D\\_i $\\pm$ 1'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Escape the characters that Markdown would interpret within a line."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|~#$" else c for c in text)
    return html.escape(escaped, quote=False).replace("\n", "<br>")


def header_spans(header: Sequence[Sequence[str]]) -> list[list[tuple[str, int, int]]]:
    """Return the labels of each line of a header, with their first column and number of columns.

    Equal neighbors are one label if all labels above them are one, too. The first column, and the
    columns of the last line, stay separate.

    Examples:
        >>> header_spans([["", "a", "a", "b"], ["x", "1", "2", "2"]])[0]
        [('', 0, 1), ('a', 1, 2), ('b', 3, 1)]
    """
    columns = list(zip(*header, strict=True))
    lines = []
    for depth in range(1, len(header) + 1):
        spans: list[tuple[str, int, int]] = []
        for j, column in enumerate(columns):
            is_same = j > 1 and column[:depth] == columns[j - 1][:depth]
            if is_same and depth < len(header):
                spans[-1] = (*spans[-1][:2], spans[-1][2] + 1)
            else:
                spans.append((column[depth - 1], j, 1))
        lines.append(spans)
    return lines


def _joined_header(header: Sequence[Sequence[str]], separator: str) -> list[str]:
    """Return one name for each column: its labels of all lines."""
    return [separator.join(filter(None, labels)) for labels in zip(*header, strict=True)]


def text_columns(table: TableItem) -> list[bool]:
    """Return whether each column holds text, which is aligned left: the first, and words."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header[-1])
    words = [sum(text[:1].isalpha() for text in column) for column in columns]
    counts = [sum(bool(text) for text in column) for column in columns]
    return [j == 0 or 2 * words[j] > counts[j] for j in range(len(columns))]


def to_markdown(table: TableItem) -> str:
    """Return the table for a forge; lines of a header are lines of its cells."""
    heads = _joined_header([[escape_markdown(t) for t in line] for line in table.header], "<br>")
    rows = _entries(table, escape_markdown, lambda text: f"**{text}**")
    rule = ["---" if is_text else "---:" for is_text in text_columns(table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, rule, *rows])


def to_csv(table: TableItem) -> str:
    """Return the table without bold."""
    return csv_text([_joined_header(table.header, ", "), *table.rows])


def to_latex(table: TableItem) -> str:
    """Return table environments in the style of booktabs, scaled down to the page.

    Columns beyond ``_LATEX_WIDTH`` characters are tables of their own: in one they would be too
    small to read.
    """
    splits = [split_columns(table, width) for width in range(1, _LATEX_WIDTH + 1)]
    parts = next(split for split in splits if len(split) == len(splits[-1]))  # of similar width
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for number, part in enumerate(parts, 1):
        caption = table.caption + f" Part {number} of {len(parts)}." * (len(parts) > 1)
        lines += [r"\begin{table}", r"\centering", r"\setlength{\belowcaptionskip}{1ex}"]
        lines += [rf"\caption{{{escape_latex(caption)}}}"]
        lines += [rf"\label{{tab:{table.name}{f'-{number}' if number > 1 else ''}}}"]
        lines += [*_LATEX_FIT, *_tabular(part), "}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tabular(table: TableItem) -> list[str]:
    """Return the lines of a tabular environment."""
    columns = "".join("l" if is_text else "r" for is_text in text_columns(table))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    for spans in header_spans(table.header):
        heads, rules = [], []
        for label, first, width in spans:
            text = escape_latex(label)
            heads.append(text if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{text}}}")
            if width > 1:
                rules.append(rf"\cmidrule(lr){{{first + 1}-{first + width}}}")
        lines += [" & ".join(heads) + r" \\", *([" ".join(rules)] if rules else [])]
    rows = _entries(table, escape_latex, lambda text: rf"\textbf{{{text}}}")
    lines += [r"\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    return [*lines, r"\bottomrule", r"\end{tabular}%"]


def to_html(table: TableItem) -> str:
    """Return a ``<table>``; columns of text, and those named ``paper``, have these classes."""
    classes = [
        " class=paper" if label == PAPER else " class=text" if is_text else ""
        for label, is_text in zip(table.header[-1], text_columns(table), strict=True)
    ]
    lines = ["<table>", "<thead>"]
    for spans in header_spans(table.header):
        cells = ""
        for label, first, width in spans:
            one, several = f"scope=col{classes[first]}", f"scope=colgroup colspan={width}"
            cells += f"<th {one if width == 1 else several}>{html.escape(label)}</th>"
        lines.append(f"<tr>{cells}</tr>")
    lines += ["</thead>", "<tbody>"]
    for name, *row in _entries(table, html.escape, lambda text: f"<strong>{text}</strong>"):
        cells = "".join(f"<td{c}>{text}</td>" for text, c in zip(row, classes[1:], strict=True))
        lines.append(f"<tr><th scope=row>{name}</th>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def to_text(table: TableItem, width: int = 120) -> str:
    """Return aligned columns, the best marked by a star; wider than ``width``, it is in parts."""
    return "\n\n".join(_aligned(part) for part in split_columns(table, width))


def split_columns(table: TableItem, width: int) -> list[TableItem]:
    """Return the table in parts of at most ``width`` characters, each with the first column."""
    widths = _widths(table)
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[j] + 2 for j in [*parts[-1], column]) - 2 > width:
            parts.append([0])
        parts[-1].append(column)
    return [
        replace(
            table,
            header=[[line[j] for j in part] for line in table.header],
            rows=[[row[j] for j in part] for row in table.rows],
            bold=frozenset((i, part.index(j)) for i, j in table.bold if j in part),
        )
        for part in parts
    ]


def _text_lines(table: TableItem) -> list[list[str]]:
    """Return the header, with a label of several columns above the first of them, and the rows."""
    header = [[""] * len(line) for line in table.header]
    for line, spans in zip(header, header_spans(table.header), strict=True):
        for label, first, _ in spans:
            line[first] = label
    return [*header, *_entries(table, str, lambda text: f"*{text}")]


def _widths(table: TableItem) -> list[int]:
    return [max(map(len, column)) for column in zip(*_text_lines(table), strict=True)]


def _aligned(table: TableItem) -> str:
    widths = _widths(table)
    align = [str.ljust if is_text else str.rjust for is_text in text_columns(table)]
    lines = []
    for row in _text_lines(table):
        cells = zip(align, row, widths, strict=True)
        lines.append("  ".join(put(text, width) for put, text, width in cells).rstrip())
    lines.insert(len(table.header), "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def _entries(
    table: TableItem, escape: Callable[[str], str], embolden: Callable[[str], str]
) -> list[list[str]]:
    """Return the escaped texts of the rows, the best of them in bold."""
    rows = [[escape(text) for text in row] for row in table.rows]
    for i, j in table.bold:
        rows[i][j] = embolden(rows[i][j])
    return rows
