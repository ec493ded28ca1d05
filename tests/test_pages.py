"""The pages do not promise what does not exist: Python blocks, configs and paths that they name."""

import csv
import dataclasses
import re
import statistics
from pathlib import Path

import pytest
import torch

import fedaux_pl
from fedaux_pl.algorithms import Aggregate, Member, Teachers
from fedaux_pl.models import registry

ROOT = Path(__file__).parents[1]
TOP = ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")
PAGES = [ROOT / f"{name}.md" for name in TOP]
PAGES += sorted(ROOT.glob("docs/*.md"))


def blocks(page, language):
    """The code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_the_federation_of_the_readme_runs_and_prints_its_accuracy(tmp_path, monkeypatch, capsys):
    """As it stands, with smaller numbers."""
    block = blocks(ROOT / "README.md", "python")[0]
    for number, smaller in (
        ("epochs=5, batch", "epochs=1, batch"),
        ("max_epochs=5", "max_epochs=1"),
    ):
        assert number in block
        block = block.replace(number, smaller)
    block = block.replace('"width": 0.25', '"width": 0.125')
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)  # noqa: S102 - our own page
    accuracy = next(float(x) for x in capsys.readouterr().out.split("\n") if x[:2] in ("0.", "1."))
    correct = names["probabilities"].argmax(dim=1) == names["data"].test_examples.targets
    assert accuracy == pytest.approx(correct.float().mean().item())
    assert list(tmp_path.rglob("summary.json"))


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_the_federation_of_the_page_on_silos_measures_each_silo(tmp_path, monkeypatch):
    block = blocks(ROOT / "docs" / "silos.md", "python")[0]
    for number, smaller in (
        ("epochs=5, batch", "epochs=1, batch"),
        ("max_epochs=5", "max_epochs=1"),
        ('"width": 0.25', '"width": 0.125'),
    ):
        assert number in block
        block = block.replace(number, smaller)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)  # noqa: S102 - our own page
    assert names["federation"].metrics.keys() > {"f1", "client_accuracy/north", "client_f1/south"}


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_the_module_alone_of_the_readme_runs(tmp_path, monkeypatch):
    block = blocks(ROOT / "README.md", "python")[1]
    for number, smaller in ((".inputs", ".inputs[:32]"), ("max_epochs=2", "max_epochs=1")):
        assert number in block
        block = block.replace(number, smaller)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)  # noqa: S102 - our own page
    assert names["features"].shape == (8, 512)
    assert Path("h0.safetensors").exists()


def test_the_readme_has_the_two_commands_that_set_everything_up():
    """CI greps the second one and runs it in a fresh clone."""
    lines = (ROOT / "README.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith("python3 -m venv ")]
    assert [line.rpartition("/")[2] for line in commands] == ["quickstart.yaml", "pytest"]
    assert not any(" -q" in line for line in commands)  # minutes without a sign of life


def block_of_extending(word):
    """The Python block of the page on extending that has this word."""
    (block,) = [b for b in blocks(ROOT / "docs" / "extending.md", "python") if word in b]
    return block


def test_the_server_step_of_the_page_on_extending():
    names = {}
    exec(block_of_extending("HeavyBall"), names)  # noqa: S102 - our own page
    x, state = {"w": torch.tensor(4.0)}, {}
    for expected in (3.0, 1.5):  # 4 + (3 - 4), then 3 + (2 - 3) + 0.5 * (3 - 4)
        average = {"w": x["w"] - 1}
        x, state = names["HeavyBall"]().server_step(Aggregate(x, average, state=state))
        assert x["w"] == expected


def test_the_distillation_of_the_page_on_extending_weighs_clients_by_their_records():
    names = {}
    exec(block_of_extending("WeightedBySize"), names)  # noqa: S102 - our own page
    method = names["WeightedBySize"]()
    logits = {0: torch.tensor([[2.0, 0.0]]), 1: torch.tensor([[0.0, 4.0]])}
    members = [Member("resnet8", {"i": torch.tensor(i)}, i, (30, 10)[i]) for i in logits]
    teachers = Teachers(members, lambda _, state: logits[int(state["i"])], shape=(1, 2))
    expected = torch.tensor([[1.5, 1.0]]).softmax(dim=-1)  # (30 f_0 + 10 f_1) / 40
    assert torch.equal(method.soft_labels(teachers), expected)
    zero, four = {"w": torch.tensor(0.0)}, {"w": torch.tensor(4.0)}
    assert method.new_model(zero, zero, four) == {"w": torch.tensor(2.0)}


def test_the_half_step_of_the_page_on_extending():
    names = {}
    exec(block_of_extending("HalfStep"), names)  # noqa: S102 - our own page
    zero, four = {"w": torch.tensor(0.0)}, {"w": torch.tensor(4.0)}
    assert names["HalfStep"]().server_step(Aggregate(zero, four)) == ({"w": torch.tensor(2.0)}, {})


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_the_modules_alone_of_the_page_on_extending_run(tmp_path, monkeypatch):
    """One after another, as printed, with few images."""
    page = (ROOT / "docs" / "extending.md").read_text().partition("## One piece")[2]
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block.replace(".auxiliary()", ".auxiliary()[:64]"), names)  # noqa: S102 - our page
    assert names["scores"].shape == (64,)
    assert names["student"](names["public"]).shape == (64, 10)
    assert Path("h0.safetensors").exists()


def test_the_architecture_of_the_page_on_extending_can_be_created(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    exec(block_of_extending("register"), {})  # noqa: S102 - our own page
    assert registry.create_model("tinynet", 5, in_channels=1).feature_dim == 32


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_a_page_names_exist(page):
    """Configs, tests and rooms in backquotes or commands, such as configs/quickstart.yaml."""
    rooms = "configs|docs|examples|tests|fedaux_pl"
    named = re.findall(rf"(?<![\w/.])(?:{rooms})/[\w./*-]*\w", page.read_text())
    if not (ROOT / "fedaux_pl" / "accelerate").exists():  # the rest passes its tests without it
        named = [path for path in named if "accelerate" not in path]
    for path in named:
        assert list(ROOT.glob(path)), f"{page.name} names {path}"


def headings(page):
    """The anchors that GitHub gives to the headings of a page."""
    lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_a_file_and_a_heading(page):
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if not link.startswith("http"):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in headings(target), f"{page.name}: {link}#{anchor}"


def test_every_figure_stands_on_a_page():
    shown = set()
    for page in PAGES:
        for image in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text()):
            shown.add((page.parent / image).resolve())
    figures = [*ROOT.glob("docs/**/*.png"), *ROOT.glob("docs/**/*.svg")]
    assert shown == {figure.resolve() for figure in figures}


def test_the_tables_of_silos_are_those_of_the_runs():
    """Means and standard deviations over the seeds, of each row of both pages."""
    with open(ROOT / "docs/results/data/silos.csv", encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    results = (ROOT / "docs/silo_results.md").read_text()
    overview = (ROOT / "docs/silos.md").read_text()
    silos = {
        "digits": ["plain", "inverted", "dark", "noisy"],
        "pacs": ["art_painting", "cartoon", "photo", "sketch"],
        "office": ["amazon", "caltech10", "dslr", "webcam"],
    }
    for name, method in {(run["set"], run["method"]) for run in runs}:
        same = [run for run in runs if (run["set"], run["method"]) == (name, method)]
        assert sorted(run["seed"] for run in same) == ["0", "1", "2"]
        cells = []
        for column in ("mean", "worst", *silos[name]):
            values = [float(run[column]) for run in same]
            cells.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
        assert f"\n| {method} | {' | '.join(cells)} |\n" in results, (name, method)
        assert cells[0] in overview, (name, method)


def test_every_extra_is_installed_from_a_clone():
    """The package is on no registry, so that `pip install fedaux-pl` would find nothing."""
    sources = [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("fedaux_pl/**/*.py"), *PAGES]
    for path in sources:
        if path.name != "CHANGELOG.md":
            assert "install 'fedaux-pl" not in path.read_text(), path


def test_the_drawing_of_what_clients_send_is_that_of_its_script():
    from tools.draw_sends import draw

    assert draw() == (ROOT / "docs" / "assets" / "sends.svg").read_text()


TERMS = r"h₀|\balpha = |\+P\b|\breleases?\b|secure sum|class statistics|\bledger\b|D⁻|D_distill"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_a_page_that_uses_a_term_links_to_the_glossary(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    if page.name != "glossary.md" and re.search(TERMS, text):
        assert "](glossary.md" in text


def test_no_page_needs_a_script_from_another_host():
    for page in PAGES:
        assert "```mermaid" not in page.read_text(), f"{page.name}: draw it as SVG in docs/assets"


def test_the_api_pages_document_fields_and_type_aliases(monkeypatch):
    griffe = pytest.importorskip("griffe")
    monkeypatch.chdir(ROOT)
    extensions = griffe.load_extensions("tools/field_comments.py")
    updates = griffe.load("fedaux_pl.algorithms.updates", extensions=extensions)
    assert updates["Update.payload"].docstring.value.startswith("what it sends besides")
    assert updates["Update.size"].docstring.value == "|D_i|."
    aggregate = griffe.load("fedaux_pl.algorithms.aggregate", extensions=extensions)
    assert "server step" in aggregate["ServerState"].docstring.value


def test_the_api_pages_document_every_name_of_the_top_level():
    pytest.importorskip("mkdocs")
    from tools import site_pages

    for name, room in fedaux_pl._ROOMS.items():
        assert room in site_pages.ROOMS
        assert name in site_pages.public_names(room)
        assert site_pages.docstring(room, name), name


def test_the_api_pages_document_every_field_of_the_top_level():
    """In the docstring of its class, or of a base that has a place there too."""
    pytest.importorskip("mkdocs")
    from tools import site_pages

    for name, room in fedaux_pl._ROOMS.items():
        kind = getattr(fedaux_pl, name)
        if not dataclasses.is_dataclass(kind):
            continue
        shown = [base for base in kind.__mro__ if base.__name__ in site_pages.public_names(room)]
        text = "\n".join(base.__doc__ for base in shown)
        for field in dataclasses.fields(kind):
            assert f"\n        {field.name}: " in text, f"{name}.{field.name}"


@pytest.mark.parametrize("name", ["own_method", "own_scorer"])
def test_an_example_on_the_command_line_starts_in_its_folder(name):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert "\nFrom the command line, in this folder:\nfedaux-pl fit --config quickstart " in text
