"""The blocks of docs/tutorial.md run in their order, in one folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedaux_pl.cli import main
from tests.sites.processes import free_port
from tests.test_pages import ROOT

SMALL = [
    "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--model.model_options={width: 0.125}",
    "--model.pretraining.epochs=1", "--model.local.epochs=1", "--model.distillation.epochs=1",
    "--model.participation=0.1",
]  # fmt: skip


def blocks():
    """Return the commands and programs of the page; write its files to the current folder."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    found = re.findall(r'```(\w+)(?: title="(.*?)")?\n(.*?)```', text, re.DOTALL)
    for _, file, block in found:
        if file:
            Path(file).write_text(block)
    return [block for _, file, block in found if not file]


def run(commands):
    """Run the commands of a block in this process; a fit is small."""
    for line in commands.replace("\\\n", "").splitlines():
        name, verb, *args = shlex.split(line)
        assert name == "fedaux-pl"
        if args[-1] == "logs/runs/*":
            args[-1:] = sorted(map(str, Path("logs/runs").iterdir()))
        assert main([verb, *args, *SMALL * (verb == "fit")]) == 0, line


@pytest.mark.usefixtures("without_figures")
def test_digits_pictures_a_method_and_everything_private(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delitem(sys.modules, "my_method", raising=False)  # of another test
    digits, program, pictures, method, private, _ = blocks()
    run(digits)
    assert re.search(r"\nFedAUX-Digits.*\nFedAvg\+P-Digits", capsys.readouterr().out)
    exec(program, {})  # noqa: S102 - our own page
    run(pictures)
    assert Path("predictions.csv").read_text().count("\n") == 1 + len(
        list(Path("public").iterdir())
    )
    assert Path("model", "model.safetensors").exists()
    run(method)
    assert "FedCertain+P after 1 round" in capsys.readouterr().out
    run(private)
    printed = capsys.readouterr().out
    assert "simulated" not in printed  # the noise is secret
    assert "every run costs (epsilon 1, delta 1e-05) again, and nothing adds runs up" in printed


@pytest.mark.sites
def test_real_sites_as_printed(tmp_path, monkeypatch):
    """With one round, and on a port that is free."""
    monkeypatch.chdir(tmp_path)
    _, program, *_, commands = blocks()
    exec(program, {})  # noqa: S102 - our own page
    settings = Path("run.yaml")
    settings.write_text(settings.read_text().replace("max_epochs: 5", "max_epochs: 1"))
    port = str(free_port())
    commands = commands.replace("8402", port).replace("init", f"init --port {port}", 1)
    folders = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", commands], capture_output=True, text=True,
        env=os.environ | folders | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("south .*last round 1", done.stdout)
    assert "(epsilon 1, delta 1e-05)-private" in Path("north.log").read_text()
