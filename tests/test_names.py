"""Names of others in what a run prints and writes: none of them is interpreted."""

import re

import numpy as np
import pytest
from markdown import markdown
from matplotlib.text import Text

from fedaux_pl.callbacks.client_results import as_markdown, client_table, describe_clients
from fedaux_pl.callbacks.figures.counts import client_bars_figure, client_lines_figure
from fedaux_pl.callbacks.privacy_table import format_guarantees
from fedaux_pl.callbacks.report import log_text, rasterize, write_curve
from fedaux_pl.names import Markup, file_safe, markdown_safe, terminal_safe, terminal_safe_lines
from fedaux_pl.scoring import Guarantee

HEADING = "north\n\n## Privacy\n\n- private: everything"
ATTACKS = {
    "element": "<img src=x onerror=alert(1)>",
    "link": "[click](javascript:alert(1))",
    "bare link": "https://evil.example www.evil.example a@evil.example",
    "color": "\x1b[31mred\x1b]0;title\x07",
    "one byte": "\x9b2J",
    "heading": HEADING,
    "carriage return": "north\rsouth",
    "separator": "north\u2028## Privacy",
    "direction": "\u202eevitavirp\u2066",
    "code": "`rm`",
    "cell": "a | b |\n| c | d",
    "emphasis": "**bold** _x_ ~~y~~",
    "entity": "&lt;img&gt;",
    "escape": "\\[x\\](javascript:y)",
    "formula": "$x$ $\\frac$",
    "no text": "caf\udce9",
}


@pytest.fixture(params=list(ATTACKS))
def attack(request):
    return ATTACKS[request.param]


def is_one_safe_line(text):
    return text.isprintable() and "\n" not in text


def elements(text):
    """The names of all elements that a renderer makes, as TensorBoard's does."""
    page = markdown(text, extensions=["tables", "fenced_code"])
    return set(re.findall(r"</?([a-z][a-z0-9]*)", page)), page


def test_a_terminal_gets_one_line_that_can_be_printed(attack):
    shown = terminal_safe(attack)
    assert is_one_safe_line(shown)
    shown.encode()  # has no lone surrogates


@pytest.mark.parametrize("name", ["north", "Zürich 3", "病院", "مستشفى", "a-b_c.d", "$1 <2>"])
def test_names_that_can_be_read_stay(name):
    assert terminal_safe(name) == name


def test_an_error_keeps_its_lines():
    assert terminal_safe_lines("one\ntwo \x1b[2J") == "one\ntwo \\x1b[2J"


def test_markdown_shows_a_name_and_interprets_nothing(attack):
    text = markdown_safe(attack)
    assert is_one_safe_line(text)
    found, page = elements(f"- NOT private: the data of {text}")
    assert found == {"ul", "li"}
    assert "href" not in page
    found, _ = elements(f"# FedAUX on {text}")
    assert found == {"h1"}
    assert not re.search(r"://|www\.|\S@\S", text)  # which GitHub would link


def test_the_shown_text_is_the_name():
    for name in ("a|b", "<b>", "[x](y)", "**x**", "`x`", "a_b"):
        _, page = elements(f"| {markdown_safe(name)} |  |\n| --- | --- |\n| 1 | 2 |")
        expected = name.replace("<", "&lt;").replace(">", "&gt;")
        assert f"<th>{expected}</th>" in page


def test_a_table_has_its_cells_whatever_is_in_them(attack):
    text = as_markdown([("client", "accuracy"), (attack, 0.5), ("south", Markup("`x`"))])
    assert len(text.splitlines()) == 4
    found, page = elements(text)
    assert found == {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert page.count("<td>") == 4


def test_the_line_about_clients(attack):
    for count in (1, 6):
        names = [attack, *(f"silo{k}" for k in range(count))]
        measured = {f"client_accuracy/{name}": 0.1 * k for k, name in enumerate(names)}
        measured |= {"mean_client/accuracy": 0.5, "worst_client/accuracy": 0.0}
        assert is_one_safe_line(describe_clients(measured))


def test_the_table_of_guarantees_has_no_line_of_a_name(attack):
    lines = format_guarantees([Guarantee(f"its vote at {attack}")]).splitlines()
    assert all(map(str.isprintable, lines))
    assert sum("NOT private" in line for line in lines) == 1
    assert not any(line.startswith(("##", "- private", "| c")) for line in lines)


def test_tables_of_numbers(attack, tmp_path):
    """curve.csv and clients.csv, which people print to a terminal."""
    write_curve(tmp_path / "curve.csv", [{"round": 1, f"client_accuracy/{attack}": 0.5}])
    measured = {f"client_accuracy/{attack}": 0.5, "mean_client/accuracy": 0.5}
    assert client_table(measured)
    text = (tmp_path / "curve.csv").read_bytes().decode()
    assert len(text.splitlines()) == 2
    assert all(map(str.isprintable, text.splitlines()))


def test_figures_draw_names_as_they_are(attack):
    names = [attack, "south"]
    figures = [
        client_bars_figure(names, [0.5, 0.6], "2 clients"),
        client_lines_figure([1, 2], names, {"accuracy": np.full((2, 2), 0.5)}),
    ]
    for figure in figures:
        rasterize(figure)  # a formula would be drawn, or raise
        assert all("\n" not in text.get_text() for text in figure.findobj(Text))


def test_files_stay_in_their_folder(attack, tmp_path):
    for name in (attack, "../../x", "..", ".hidden", "/etc/passwd", "", "病" * 200):
        path = tmp_path / f"a-{file_safe(name)}.png"
        path.touch()
        assert path.resolve().parent == tmp_path
        assert not file_safe(name).startswith(".")


class Artifacts:
    """A logger like MLflow's, which takes paths."""

    run_id = "1"

    def __init__(self):
        self.paths = []
        self.experiment = self

    def log_text(self, run_id, text, path):
        self.paths.append(path)


def test_artifacts_stay_in_their_folder():
    logger = Artifacts()
    log_text(logger, "evaluation/../../secret", "text")
    assert logger.paths == ["evaluation/_/_/secret.md"]


def test_the_test_can_fail():
    """The same texts without protection make elements, links and headings."""
    made = set()
    for attack in ATTACKS.values():
        found, _ = elements(f"- the data of {attack}")
        made |= found
    assert {"img", "a", "h2", "code", "strong"} <= made
