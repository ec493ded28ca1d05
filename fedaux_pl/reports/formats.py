"""A table as Markdown, CSV, LaTeX, HTML and text for a terminal."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedaux_pl.files import csv_text
from fedaux_pl.names import markdown_safe, terminal_safe

PAPER = "paper"
"""The label of columns with published values."""

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "[": "{[}", "*": "{*}",  # after the end of a line these are its options
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---", "…": r"\ldots{}", "·": r"$\cdot$",  # noqa: RUF001
    "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "√": r"$\surd$", "→": r"$\to$", "∑": r"$\sum$",
    "α": r"$\alpha$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$", "μ": r"$\mu$",  # noqa: RUF001
    "⁵": "$^5$", "⁶": "$^6$", "⁻": "$^-$", "²": "$^2$", "✓": "yes", "✗": "no",
})  # fmt: skip
_LATEX_WIDTH = 120  # characters: a page of LaTeX has 80 at 10 pt
_LATEX_FIT = (
    r"\resizebox*{!}{\ifdim\totalheight>.8\textheight .8\textheight\else\totalheight\fi}{%",
    r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
)


@dataclass(frozen=True, eq=False)
class TableItem:
    """A table of a report.

    The first column of the frame, which holds texts, names the rows. Names of columns are texts or
    a MultiIndex, whose levels are lines of the header.
    """

    name: str  # the stem of its files, such as accuracy
    caption: str
    frame: pd.DataFrame
    bold: frozenset[tuple[int, int]] = frozenset()  # entries (row, column)

    @property
    def rows(self) -> list[list[str]]:
        """The texts of the rows."""
        texts: list[list[str]] = self.frame.to_numpy().tolist()
        return texts


def escape_latex(text: str) -> str:
    r"""Escape the characters that LaTeX would interpret, or does not have.

    Examples:
        >>> escape_latex("10 % of D_i ± 1")
        '10 \\% of D\\_i $\\pm$ 1'
    """
    return text.translate(_LATEX)


def escape_markdown(text: str) -> str:
    """Escape the characters that Markdown would interpret within a line."""
    return "<br>".join(map(markdown_safe, text.split("\n")))


def header_spans(columns: pd.Index) -> list[list[tuple[str, int, int]]]:
    """Return the labels of each line of a header, with their first column and number of columns.

    Equal neighbors are one label if all labels above them are one, too. The first column, and the
    columns of the last line, stay separate.

    Examples:
        >>> columns = pd.MultiIndex.from_arrays([["", "a", "a", "b"], ["x", "1", "2", "2"]])
        >>> header_spans(columns)[0]
        [('', 0, 1), ('a', 1, 2), ('b', 3, 1)]
    """
    heads = columns.to_frame(index=False)
    is_new = (heads != heads.shift()).cummax(axis=1)
    is_new.iloc[:2] = True
    is_new.iloc[:, -1] = True
    lines = []
    for level, labels in heads.items():
        firsts = np.flatnonzero(is_new[level])
        widths = np.diff(firsts, append=len(heads))
        spans = zip(labels[firsts], firsts.tolist(), widths.tolist(), strict=True)
        lines.append(list(spans))
    return lines


def _joined_header(columns: pd.Index, separator: str) -> list[str]:
    """Return one name for each column: its labels of all lines."""
    heads = columns.to_frame(index=False).to_numpy()
    return [separator.join(filter(None, labels)) for labels in heads]


def text_columns(frame: pd.DataFrame) -> list[bool]:
    """Return whether each column holds text, which is aligned left: the first, and words."""
    words = frame.map(lambda text: text[:1].isalpha()).sum()
    texts = frame.map(bool).sum()
    return [True, *(2 * words > texts)[1:]]


def to_markdown(table: TableItem) -> str:
    """Return the table for a forge; lines of a header are lines of its cells."""
    heads = [escape_markdown(head) for head in _joined_header(table.frame.columns, "\n")]
    rows = _entries(table, escape_markdown, "**{}**")
    rule = ["---" if is_text else "---:" for is_text in text_columns(table.frame)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, rule, *rows])


def to_csv(table: TableItem) -> str:
    """Return the table without bold."""
    return csv_text([_joined_header(table.frame.columns, ", "), *table.rows])


def to_latex(table: TableItem) -> str:
    """Return table environments in the style of booktabs, scaled down to the page.

    Columns beyond ``_LATEX_WIDTH`` characters are tables of their own: in one they would be too
    small to read.
    """
    splits = (split_columns(table, width) for width in range(1, _LATEX_WIDTH + 1))
    parts = min(splits, key=len)  # the first split with the fewest parts: of similar width
    count = len(parts)
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for number, part in enumerate(parts, 1):
        caption = table.caption
        if count > 1:
            caption += f" Part {number} of {count}."
        label = table.name if number == 1 else f"{table.name}-{number}"
        lines += [
            r"\begin{table}",
            r"\centering",
            r"\setlength{\belowcaptionskip}{1ex}",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{tab:{label}}}",
            *_LATEX_FIT,
            *_tabular(part),
            "}}",
            r"\end{table}",
        ]
    return "\n".join(lines) + "\n"


def _tabular(table: TableItem) -> list[str]:
    """Return the lines of a tabular environment."""
    columns = "".join("l" if is_text else "r" for is_text in text_columns(table.frame))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    for spans in header_spans(table.frame.columns):
        heads = []
        rules = []
        for label, first, width in spans:
            head = escape_latex(label)
            if width > 1:
                head = rf"\multicolumn{{{width}}}{{c}}{{{head}}}"
                rules.append(rf"\cmidrule(lr){{{first + 1}-{first + width}}}")
            heads.append(head)
        lines.append(_latex_row(heads))
        if rules:
            lines.append(" ".join(rules))
    rows = _entries(table, escape_latex, r"\textbf{{{}}}")
    return [*lines, r"\midrule", *map(_latex_row, rows), r"\bottomrule", r"\end{tabular}%"]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def to_html(table: TableItem) -> str:
    """Return a ``<table>``; columns of text, and those named ``paper``, have these classes."""
    spans = header_spans(table.frame.columns)
    classes = ["class=text" if is_text else "" for is_text in text_columns(table.frame)]
    for label, column, _ in spans[-1]:
        if label == PAPER:
            classes[column] = "class=paper"
    lines = ["<table>", "<thead>"]
    for line in spans:
        cells = ""
        for label, first, width in line:
            scope = f"colgroup colspan={width}" if width > 1 else f"col {classes[first]}".strip()
            cells += f"<th scope={scope}>{html.escape(label)}</th>"
        lines.append(f"<tr>{cells}</tr>")
    lines += ["</thead>", "<tbody>"]
    for name, *texts in _entries(table, html.escape, "<strong>{}</strong>"):
        cells = f"<th scope=row>{name}</th>"
        for text, kind in zip(texts, classes[1:], strict=True):
            cells += f"<{f'td {kind}'.strip()}>{text}</td>"
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def to_text(table: TableItem, width: int = 120) -> str:
    """Return aligned columns, the best marked by a star; wider than ``width``, it is in parts."""
    return "\n\n".join(_aligned(part) for part in split_columns(table, width))


def split_columns(table: TableItem, width: int) -> list[TableItem]:
    """Return the table in parts of at most ``width`` characters, each with the first column."""
    first, *widths = _text_lines(table).map(len).max()
    parts: list[list[int]] = [[0]]
    total = first
    for column, column_width in enumerate(widths, 1):
        total += 2 + column_width
        if total > width and len(parts[-1]) > 1:
            parts.append([0])
            total = first + 2 + column_width
        parts[-1].append(column)
    tables = []
    for part in parts:
        bold = frozenset((i, part.index(j)) for i, j in table.bold if j in part)
        tables.append(replace(table, frame=table.frame.iloc[:, part], bold=bold))
    return tables


def _text_lines(table: TableItem) -> pd.DataFrame:
    """Return the header, with a label of several columns above the first of them, and the rows."""
    header = []
    for spans in header_spans(table.frame.columns):
        line = [""] * table.frame.shape[1]
        for label, first, _ in spans:
            line[first] = terminal_safe(label)
        header.append(line)
    return pd.DataFrame([*header, *_entries(table, terminal_safe, "*{}")])


def _aligned(table: TableItem) -> str:
    texts = _text_lines(table)
    widths = texts.map(len).max()
    signs = ["<" if is_text else ">" for is_text in text_columns(table.frame)]
    form = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    lines = [form.format(*row).rstrip() for row in texts.to_numpy()]
    lines.insert(table.frame.columns.nlevels, "-" * len(form.format(*texts.loc[0])))
    return "\n".join(lines)


def _entries(table: TableItem, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the escaped texts of the rows, the best of them in the form ``bold``."""
    frame = table.frame.map(escape)
    for entry in table.bold:
        frame.iloc[entry] = bold.format(frame.iloc[entry])
    return replace(table, frame=frame).rows
