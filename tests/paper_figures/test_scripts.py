"""The scripts in paper/ and tools/: command lines as on docs/paper_figures.md, and imports."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "paper").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_is_on_the_page_and_says_what_it_makes(script):
    text = script.read_text()
    title, command, _note = re.match(r'"""(.*?)"""', text, re.DOTALL)[1].split("\n\n")
    assert re.match(r"(Figures?|Table) \d+", title)
    assert f"python paper/{script.name}" in command
    assert f"| `{script.name}" in (ROOT / "docs" / "paper_figures.md").read_text()


@pytest.mark.parametrize(
    "script", sorted([*ROOT.glob("paper/**/*.py"), *ROOT.glob("tools/*.py")]), ids=lambda p: p.stem
)
def test_scripts_import_what_the_package_has(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedaux_pl"):
            module = importlib.import_module(node.module)
            for name in node.names:
                path = f"{node.module}.{name.name}"
                assert hasattr(module, name.name) or importlib.util.find_spec(path)


def test_a_script_writes_its_report(tmp_path):
    command = [sys.executable, "paper/imagenet_subsets.py", "--output", tmp_path / "table6"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Devices        n03183080" in run.stdout
    page = (tmp_path / "table6" / "index.html").read_text()
    assert "<h1>Table 6: the subsets of ImageNet, their WordNet ids and sizes.</h1>" in page
