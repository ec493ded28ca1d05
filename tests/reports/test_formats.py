import csv
import io
import re

import pandas as pd
import pytest

from fedaux_pl.reports.formats import (
    TableItem,
    escape_latex,
    escape_markdown,
    header_spans,
    text_columns,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)
from fedaux_pl.reports.values import ABSENT as GAP


def header(*lines):
    return pd.MultiIndex.from_arrays(lines)


TABLE = TableItem(
    "accuracy",
    "100 % of D_i & more",
    pd.DataFrame(
        [["A_1", "61.4 ± 0.8 (3)", "74.6", GAP], ["<B|>", "60.0 (1)", GAP, "(3/100 rounds)"]],
        columns=header(["", "a = 1", "a = 1", "a = 2"], ["method", "ours", "paper", "ours"]),
    ),
    frozenset({(0, 1)}),
)


def test_markdown():
    assert to_markdown(TABLE) == (
        "| method | a = 1<br>ours | a = 1<br>paper | a = 2<br>ours |\n"
        "| --- | ---: | ---: | ---: |\n"
        f"| A\\_1 | **61.4 ± 0.8 (3)** | 74.6 | {GAP} |\n"
        f"| &lt;B\\|&gt; | 60.0 (1) | {GAP} | (3/100 rounds) |\n"
    )
    assert escape_markdown("a*b*`c`[d]\ne") == "a\\*b\\*\\`c\\`\\[d\\]<br>e"
    assert escape_markdown("$1 or $2") == "\\$1 or \\$2"


def test_csv():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["method", "a = 1, ours", "a = 1, paper", "a = 2, ours"]
    assert rows[1:] == TABLE.rows


def test_latex():
    text = to_latex(TABLE)
    lines = text.splitlines()
    assert r"\begin{tabular}{lrrr}" in lines
    assert r" & \multicolumn{2}{c}{a = 1} & a = 2 \\" in lines
    assert r"\cmidrule(lr){2-3}" in lines
    assert r"A\_1 & \textbf{61.4 $\pm$ 0.8 (3)} & 74.6 & -- \\" in lines
    assert r"\textless{}B\textbar{}\textgreater{} & 60.0 (1) & -- & (3/100 rounds) \\" in lines
    assert r"\caption{100 \% of D\_i \& more}" in lines
    check_latex(text, 4)


def test_latex_takes_no_label_for_an_option_of_the_line_above():
    rows = [["[1, 2]", "61.4"], ["*", "60.0"]]
    frame = pd.DataFrame(rows, columns=["layers", "ours"])
    lines = to_latex(TableItem("a", "a", frame)).splitlines()
    assert lines[-6:-4] == [r"{[}1, 2] & 61.4 \\", r"{*} & 60.0 \\"]


def test_latex_that_is_wider_than_a_page_is_written_in_parts():
    """Each part has the names of the rows, its own bold entries and a label; all fit the page."""
    labels = [f"setting {i} of a long name" for i in range(9)]
    rows = [["FedAVG", *map(str, range(9))], ["FedAUX", *map(str, range(10, 19))]]
    frame = pd.DataFrame(rows, columns=["method", *labels])
    text = to_latex(TableItem("a", "What.", frame, frozenset({(1, 6)})))
    parts = text.split(r"\begin{table}")[1:]
    cells = [
        re.search(r"^FedAUX & (.*) \\\\$", part, re.MULTILINE)[1].split(" & ") for part in parts
    ]
    assert [len(own) for own in cells] == [3, 3, 3]
    assert sum(cells, []) == [r"\textbf{15}" if n == 15 else str(n) for n in range(10, 19)]
    assert [re.findall(r"Part \d of 3|tab:a[-\d]*", part) for part in parts] == [
        ["Part 1 of 3", "tab:a"], ["Part 2 of 3", "tab:a-2"], ["Part 3 of 3", "tab:a-3"]
    ]  # fmt: skip
    assert text.count(r"\resizebox{\ifdim\width>\linewidth") == 3
    check_latex(r"\begin{table}" + parts[0], len(cells[0]) + 1)


def check_latex(text, columns):
    """Braces and environments are balanced, and every row has all columns."""
    bare = re.sub(r"\\[\\{}%&_#$]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]
    for line in text.splitlines():
        if line.endswith(r"\\"):
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            cells = len(re.findall(r"(?<!\\)&", line)) + 1
            assert cells + sum(spans) - len(spans) == columns


@pytest.mark.parametrize("text", ["\\", "{", "}", "~^#$%&_", "a\\b{c}", "ε ≤ 10⁻⁵"])
def test_latex_of_special_characters(text):
    table = TableItem("x", text, pd.DataFrame({"a": [text], text: text}), frozenset({(0, 1)}))
    check_latex(to_latex(table), 2)
    assert escape_latex(escape_latex("x")) == "x"


def test_html():
    text = to_html(TABLE)
    assert "<th scope=colgroup colspan=2>a = 1</th>" in text
    assert "<th scope=col class=paper>paper</th>" in text
    assert (
        f"<td><strong>61.4 ± 0.8 (3)</strong></td><td class=paper>74.6</td><td>{GAP}</td>" in text
    )
    assert "&lt;B|&gt;" in text
    assert "<B" not in text


def test_text():
    assert to_text(TABLE) == (
        "                  a = 1                  a = 2\n"
        "method             ours  paper            ours\n"
        "----------------------------------------------\n"
        f"A_1     *61.4 ± 0.8 (3)   74.6               {GAP}\n"
        f"<B|>           60.0 (1)      {GAP}  (3/100 rounds)"
    )
    labels = ["a label above three columns, " * 2] * 3  # it is there once, and splits no table
    columns = header(["", *labels], ["m", "1", "2", "3"])
    wide = TableItem("a", "", pd.DataFrame([["A", "x", "y", "z"]], columns=columns))
    assert to_text(wide).count("three columns") == to_latex(wide).count("begin{table}") * 2 == 2


def test_wide_text_is_written_in_parts():
    parts = to_text(TABLE, width=34).split("\n\n")
    assert [part.splitlines()[1].split() for part in parts] == [
        ["method", "ours", "paper"],
        ["method", "ours"],
    ]
    assert max(len(line) for part in parts for line in part.splitlines()) <= 34
    narrow = to_text(TABLE, width=5)  # a column at a time, never none
    assert len(narrow.split("\n\n")) == 3


def test_spans_do_not_cross_those_above():
    spans = header_spans(header(["", "a", "a", "b"], ["", "x", "x", "x"], ["m", "1", "1", "1"]))
    assert spans[1] == [("", 0, 1), ("x", 1, 2), ("x", 3, 1)]
    assert header_spans(header(["", "", "a"], ["m", "1", "2"]))[0] == [
        ("", 0, 1),
        ("", 1, 1),
        ("a", 2, 1),
    ]
    assert spans[2] == [("m", 0, 1), ("1", 1, 1), ("1", 2, 1), ("1", 3, 1)]


def test_columns_of_words_are_aligned_left():
    rows = [
        ["FedAVG", "model", "failed", ""],
        ["FedAUX", "a head", "9.0", "x"],
        ["B", "-", "1", ""],
    ]
    frame = pd.DataFrame(rows, columns=["method", "sends", "accuracy", "note"])
    table = TableItem("x", "", frame)
    assert text_columns(frame) == [True, True, False, True]
    assert to_markdown(table).splitlines()[1] == "| --- | --- | ---: | --- |"
    assert r"\begin{tabular}{llrl}" in to_latex(table)
    assert "<td class=text>a head</td><td>9.0</td>" in to_html(table)
    assert to_text(table).splitlines()[3] == "FedAUX  a head       9.0  x"
