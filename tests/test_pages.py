"""The pages do not promise what does not exist: Python blocks, configs and paths that they name."""

import re
from pathlib import Path

import pytest

from fedaux_pl.models import registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted(ROOT.glob("docs/*.md"))


def blocks(page, language):
    """The code blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_federation_of_the_readme_can_be_created():
    block = blocks(ROOT / "README.md", "python")[0]
    assert block.splitlines()[-1].startswith("pl.Trainer(")
    names = {}
    exec("\n".join(block.splitlines()[:-1]), names)  # noqa: S102 - our own page
    assert names["federation"].algorithm.name == "FedAUX with memory"
    assert names["data"].num_clients == len(names["federation"].architectures)


def test_the_architecture_of_the_page_on_extending_can_be_created(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    (block,) = blocks(ROOT / "docs" / "extending.md", "python")
    exec(block, {})  # noqa: S102 - our own page
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
