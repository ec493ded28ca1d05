import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import TableItem
from fedaux_pl.reports.page import Report, Status, describe_cells, write_report
from fedaux_pl.sweeps.cells import CellState
from tests.reports.results import group

EVIL = "<script>alert('x')</script> & \"more\""
STATUS = Status("1 of 2 cells done", ["A: seed 0 missing"], "fedaux-pl sweep 'a b'")


def figure():
    drawn = Figure(figsize=(2, 1))
    drawn.add_subplot().plot([1, 2])
    return FigureItem("curves", f"Curves {EVIL}", drawn)


def table(name="accuracy"):
    return TableItem(name, f"Numbers {EVIL}", pd.DataFrame({"method": [EVIL], EVIL: "1"}))


def made():
    return Report(f"T {EVIL}", [figure(), table()], "one\n\ntwo", [table("cells")], STATUS)


class Page(HTMLParser):
    """Collects tags, what they refer to, and open tags."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "new"
    written = write_report(folder, made())
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in written)
    return folder


def test_the_files(folder):
    assert {path.name for path in folder.iterdir()} == {
        *("accuracy.csv", "accuracy.md", "accuracy.tex", "curves.png", "curves.pdf"),
        *("cells.csv", "report.md", "index.html"),
    }
    assert (folder / "curves.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(folder / "curves.png") as picture:
        assert picture.width > 200


def test_the_page_is_escaped_and_needs_nothing_else(folder):
    text = (folder / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert text.count("&lt;script&gt;") == 10
    [link] = page.links
    assert link.startswith("data:image/png;base64,")
    assert "http" not in re.sub(r"base64,[^\"]+", "", text)
    assert "url(" not in text
    assert "@import" not in text
    assert "<p>one</p>\n<p>two</p>" in text
    order = ["<h1>", "<p>one", "1 of 2 cells", "A: seed 0", "sweep &#x27;a b&#x27;", "<img"]
    places = [text.index(part) for part in [*order, "<table>", "<details>"]]
    assert places == sorted(places)


def test_the_markdown_refers_to_the_pictures(folder):
    text = (folder / "report.md").read_text()
    assert "![curves](curves.png)" in text
    assert "<script" not in text
    assert "**1 of 2 cells done**\n\n- A: seed 0 missing" in text
    assert "```bash\nfedaux-pl sweep 'a b'\n```" in text
    assert text.count("<details>") == 1
    places = [text.index(part) for part in ("![curves]", "Curves ", "Numbers ", "| method")]
    assert places == sorted(places)  # the caption of a figure is below it, that of a table above


def test_many_missing_cells_are_folded(tmp_path):
    status = Status("0 of 9 cells done", [f"{i} missing" for i in range(9)], "x")
    write_report(tmp_path, Report("T", [], status=status))
    for name in ("index.html", "report.md"):
        text = (tmp_path / name).read_text()
        fold = text.index("<details><summary>Cells that are not done")
        assert fold < text.index("0 missing") < text.index("</details>") < text.index("To run")


def test_the_same_results_write_the_same_files(folder, tmp_path):
    for path in write_report(tmp_path, made()):
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_the_status(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    groups = [
        group("method=A alpha=1", 5.0, None, None),
        group("method=B alpha=1", None, state=CellState.FAILED, curve=[1]),
        group("method=C alpha=1", 5.0),
    ]
    groups[1].results[0].cell.mark_failed("no memory")
    status = describe_cells(groups, ["fedaux-pl", "sweep", "a file", "--seeds", "0"])
    assert status.done == "2 of 5 cells done, 2 missing, 1 failed"
    assert status.missing == [
        "A, alpha = 1: seeds 1, 2 missing",
        "B, alpha = 1: seed 0 failed (1/3 rounds): no memory",
    ]
    assert status.command == "fedaux-pl sweep 'a file' --seeds 0 --retry"
    assert describe_cells(groups[2:], ["x"]) == Status("1 of 1 cell done", [], "")
