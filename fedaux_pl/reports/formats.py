"""A table as Markdown, CSV, LaTeX, HTML and text for a terminal."""

import csv
import html
import io
from collections.abc import Callable, Sequence

from fedaux_pl.reports.items import TableItem

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


def escape_latex(text: str) -> str:
    r"""Escapes the characters that LaTeX would interpret, or does not have.

    Example:
        >>> escape_latex("10 % of D_i ± 1")
        '10 \\% of D\\_i $\\pm$ 1'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def escape_markdown(text: str) -> str:
    """Escapes the characters that Markdown would interpret within a line."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|~#$" else c for c in text)
    return html.escape(escaped, quote=False).replace("\n", "<br>")


def header_spans(header: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    """The labels of each line of a header with the number of columns that each spans.

    Equal neighbors are one label if all labels above them are one, too. The first column, and the
    columns of the last line, stay separate.

    Example:
        >>> header_spans([["", "a", "a", "b"], ["x", "1", "2", "2"]])
        [[('', 1), ('a', 2), ('b', 1)], [('x', 1), ('1', 1), ('2', 1), ('2', 1)]]
    """
    lines = []
    for depth, line in enumerate(header):
        spans: list[tuple[str, int]] = []
        for column, label in enumerate(line):
            above = [upper[column - 1 : column + 1] for upper in header[: depth + 1]]
            is_same = column > 1 and all(pair[0] == pair[1] for pair in above)
            if is_same and depth < len(header) - 1:
                spans[-1] = (label, spans[-1][1] + 1)
            else:
                spans.append((label, 1))
        lines.append(spans)
    return lines


def joined_header(header: Sequence[Sequence[str]], separator: str) -> list[str]:
    """One name for each column: its labels of all lines."""
    columns = zip(*header, strict=True)
    return [separator.join(label for label in labels if label) for labels in columns]


def text_columns(table: TableItem) -> list[bool]:
    """Whether each column holds text, which is aligned left: the first, and those of words."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header[-1])
    words = [sum(text[:1].isalpha() for text in column) for column in columns]
    counts = [sum(bool(text) for text in column) for column in columns]
    return [j == 0 or 2 * words[j] > counts[j] for j in range(len(columns))]


def to_markdown(table: TableItem) -> str:
    """The table for a forge; lines of a header are lines of its cells."""
    heads = joined_header([[escape_markdown(t) for t in line] for line in table.header], "<br>")
    rows = _entries(table, escape_markdown, lambda text: f"**{text}**")
    rule = ["---" if is_text else "---:" for is_text in text_columns(table)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, rule, *rows])


def to_csv(table: TableItem) -> str:
    """The table as text, without bold."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(joined_header(table.header, ", "))
    writer.writerows(table.rows)
    return file.getvalue()


def to_latex(table: TableItem) -> str:
    """A table environment in the style of booktabs."""
    columns = "".join("l" if is_text else "r" for is_text in text_columns(table))
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
    ]
    for spans in header_spans(table.header):
        heads, rules, column = [], [], 1
        for label, width in spans:
            text = escape_latex(label)
            heads.append(text if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{text}}}")
            if width > 1:
                rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
            column += width
        lines.append(" & ".join(heads) + r" \\")
        if rules:
            lines.append(" ".join(rules))
    lines.append(r"\midrule")
    rows = _entries(table, escape_latex, lambda text: rf"\textbf{{{text}}}")
    lines += [" & ".join(row) + r" \\" for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def to_html(table: TableItem) -> str:
    """A ``<table>``; columns of text, and those named ``paper``, have these classes."""
    classes = [
        " class=paper" if label == PAPER else " class=text" if is_text else ""
        for label, is_text in zip(table.header[-1], text_columns(table), strict=True)
    ]
    lines = ["<table>", "<thead>"]
    for spans in header_spans(table.header):
        cells, column = "", 0
        for label, width in spans:
            scope = "scope=col" if width == 1 else f"scope=colgroup colspan={width}"
            cells += f"<th {scope}{classes[column] if width == 1 else ''}>{html.escape(label)}</th>"
            column += width
        lines.append(f"<tr>{cells}</tr>")
    lines += ["</thead>", "<tbody>"]
    for row in _entries(table, html.escape, lambda text: f"<strong>{text}</strong>"):
        cells = "".join(
            f"<td{name}>{text}</td>" for text, name in zip(row[1:], classes[1:], strict=True)
        )
        lines.append(f"<tr><th scope=row>{row[0]}</th>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def to_text(table: TableItem, width: int = 120) -> str:
    """Aligned columns for a terminal; the best is marked by a star.

    Args:
        table: The table.
        width: The characters of a line: a wider table is written in parts, one below another.
    """
    rows = _entries(table, str, lambda text: f"*{text}")
    widths, is_text = _widths(table.header, rows), text_columns(table)
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[j] + 2 for j in [*parts[-1], column]) - 2 > width:
            parts.append([0])
        parts[-1].append(column)
    texts = []
    for part in parts:
        header = [[line[j] for j in part] for line in table.header]
        entries = [[row[j] for j in part] for row in rows]
        texts.append(_text_part(header, entries, [is_text[j] for j in part]))
    return "\n\n".join(texts)


def _widths(header: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[int]:
    """The characters of each column; a wide label widens the last column below it."""
    widths = [max(map(len, column)) for column in zip(header[-1], *rows, strict=True)]
    for line in reversed(header_spans(header)):
        column = 0
        for label, count in line:
            column += count
            below = sum(widths[column - count : column]) + 2 * (count - 1)
            widths[column - 1] += max(0, len(label) - below)
    return widths


def _text_part(
    header: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], is_text: Sequence[bool]
) -> str:
    widths = _widths(header, rows)
    text = []
    for line in header_spans(header):
        column, cells = 0, []
        for label, count in line:
            column += count
            width = sum(widths[column - count : column]) + 2 * (count - 1)
            cells.append(
                label.center(width) if count > 1 else _align(label, width, is_text[column - 1])
            )
        text.append("  ".join(cells).rstrip())
    text.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
    for row in rows:
        cells = list(map(_align, row, widths, is_text))
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _align(text: str, width: int, is_text: bool) -> str:
    return text.ljust(width) if is_text else text.rjust(width)


def _entries(
    table: TableItem, escape: Callable[[str], str], embolden: Callable[[str], str]
) -> list[list[str]]:
    """The escaped texts of the rows, the best of them in bold."""
    return [
        [
            embolden(escape(text)) if (i, j) in table.bold else escape(text)
            for j, text in enumerate(row)
        ]
        for i, row in enumerate(table.rows)
    ]
