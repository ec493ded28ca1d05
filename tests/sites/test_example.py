"""The example of real sites: its files and the commands of the pages agree, and run as printed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedaux_pl.cli.entry import main
from tests.sites.processes import free_port
from tests.test_pages import ROOT, blocks

EXAMPLE = ROOT / "examples" / "sites"


def commands(text):
    """The commands of a text by their first three words, without comments."""
    lines = text.replace("\\\n", "").splitlines()
    words = [shlex.split(line.split(":  ")[-1], comments=True) for line in lines if "--" in line]
    return {" ".join(line[:2]): line for line in words if line}


def printed():
    """The blocks of docs/sites.md that set sites up and that run the example."""
    return blocks(ROOT / "docs" / "sites.md", "bash")


def test_the_pages_name_the_same_commands_and_files(tmp_path, monkeypatch, capsys):
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert main(["sites", "init", "--sites", "hospital-a,hospital-b", "--server", "HOST"]) == 0
    written = capsys.readouterr().out
    setup, example = printed()
    assert "nvflare provision -p sites/project.yml -w sites/kits" in setup
    for text in (written, setup, example):
        found = commands(text)
        assert found["fedaux-pl fit"] == commands(written)["fedaux-pl fit"]
        assert found["fedaux-pl site"][:6] == commands(written)["fedaux-pl site"][:6]
        for path in re.findall(r"--config (\S+)", text):
            assert Path(path).is_file(), path
    for verb in ("fedaux-pl fit", "fedaux-pl site"):
        with pytest.raises(SystemExit, match="0"):
            main([*commands(written)[verb][1:], "--print_config"])


@pytest.mark.sites
def test_the_example_runs_as_printed(tmp_path):
    """With two rounds, and on a port that is free."""
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "sites")
    run = tmp_path / "examples" / "sites" / "run.yaml"
    run.write_text(run.read_text().replace("max_epochs: 5", "max_epochs: 2"))
    port = str(free_port())
    _, example = printed()
    block = example.replace("8402", port).replace("init", f"init --port {port}", 1)
    folders = {name: str(tmp_path) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", block], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | folders | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FedAUX with memory after 2 rounds" in done.stdout
    assert re.search("hospital-b .*last round 2", done.stdout)
    log = (run.parent / "hospital-a.log").read_text()
    assert "(epsilon 1, delta 1e-05)-private" in log
