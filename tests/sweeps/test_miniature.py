"""A table of two methods and two seeds by the command line, killed in the middle and resumed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedaux_pl.cli.entry import main
from fedaux_pl.sweeps.cells import CellState, resolve
from fedaux_pl.sweeps.sweep_file import read_sweep

ROUNDS = 2
FILE = f"""
title: A miniature
base:
  - quickstart
  - trainer.max_epochs: {ROUNDS}
    trainer.accelerator: cpu
    data.private: tests.federations.FewDigits
    data.auxiliary: tests.federations.FewDigits
    model.model_options: {{width: 0.125}}
    model.pretraining: {{epochs: 1, batch_size: 20}}
    model.clients: {{resnet8: 3}}
    data.alpha: 100.0
    model.local: {{epochs: 1, batch_size: 16}}
    model.distillation: {{epochs: 1, batch_size: 16, lr: 1.0e-3}}
seeds: [0, 1]
axes:
  method: {{FedAVG: methods/fedavg, FedDF+P: methods/feddf_p}}
"""
SWEEP = "from fedaux_pl.cli import main; raise SystemExit(main())"


def command(tmp_path):
    return ["sweep", "mini.yaml", "--jobs", "2", "--root", str(tmp_path / "logs")]


def start(tmp_path):
    """Starts the sweep in a process group of its own."""
    args = [sys.executable, "-c", SWEEP, *command(tmp_path)]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    # one thread, as the tests have: results depend on their number
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        args,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def curve(folder):
    """The measurements of all rounds as text, without seconds."""
    (path,) = folder.glob("runs/*/curve.csv")
    with path.open(newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith("seconds/")}
            for row in csv.DictReader(file)
        ]


def written(folder):
    (path,) = folder.glob("runs/*/summary.json")
    return path.stat().st_mtime_ns


@pytest.mark.nightly
def test_a_killed_sweep_resumes(tmp_path, monkeypatch, capsys):
    (tmp_path / "mini.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    cells = resolve(read_sweep("mini.yaml").cells, tmp_path / "logs")
    assert len(cells) == 4

    process = start(tmp_path)
    while not any(task.state is CellState.DONE for task in cells):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    while any(task.state is CellState.RUNNING for task in cells):  # the kernel ends them one by one
        time.sleep(0.1)
    done = [task for task in cells if task.state is CellState.DONE]
    killed = [task for task in cells if task.state is CellState.UNFINISHED]
    assert 1 <= len(done) < len(cells)
    assert not any(task.state is CellState.FAILED for task in cells)
    before = {task.key: written(task.path) for task in done}
    h0 = {path: path.stat().st_mtime_ns for path in Path("logs/cache").glob("h0-*")}

    # in this process: its jobs are then forks of a server that other tests share
    for name in ("PYTHONSAFEPATH", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "1")  # which the sweep sets
    capsys.readouterr()
    status = main(command(tmp_path))
    out = capsys.readouterr().out
    assert status == 0, out
    assert all(task.state is CellState.DONE for task in cells)
    assert before == {task.key: written(task.path) for task in done}  # not run again
    started = [line for line in out.splitlines() if line.startswith(("started", "resumed"))]
    assert len([line for line in started if "method" in line]) == len(cells) - len(done)
    h0_after = {path: path.stat().st_mtime_ns for path in Path("logs/cache").glob("h0-*")}
    assert len(h0_after) == 2  # one for each seed
    assert h0.items() <= h0_after.items()  # not trained again

    compared = [*killed[:1], cells[-1]]  # one that was resumed, one that starts from h_0
    for task in compared:
        assert main(["fit", *task.args, "--trainer.default_root_dir", f"whole/{task.key}"]) == 0
        whole = curve(Path("whole") / task.key)
        assert len(whole) == ROUNDS
        assert curve(task.path) == whole

    assert main(["report", "mini.yaml"]) == 0
    report = Path("logs/reports/mini")
    with (report / "cells.csv").open(newline="") as file:
        reported = list(csv.DictReader(file))
    assert [row["state"] for row in reported] == ["done"] * len(cells)
    for row, task in zip(reported, cells, strict=True):
        best = max(float(round_["accuracy"]) for round_ in curve(task.path))
        assert float(row["accuracy"]) == pytest.approx(100 * best, abs=0.006)
    assert "4 of 4 cells done" in (report / "index.html").read_text()


def test_a_cell_that_was_killed_before_its_test_is_tested(tmp_path, monkeypatch):
    (tmp_path / "mini.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    more = ["--data.validation_fraction", "0.2", "--trainer.enable_progress_bar", "false"]
    more += ["--trainer.max_epochs", "1"]
    cells = read_sweep("mini.yaml", more, [0], select={"method": ["FedAVG"]})
    [task] = resolve(cells.cells, tmp_path)
    assert main(task.command) == 0
    assert task.state is CellState.DONE
    (path,) = task.path.glob("runs/*/summary.json")
    summary = json.loads(path.read_text())
    assert summary["last_test"]["round"] == 1
    path.write_text(json.dumps({k: v for k, v in summary.items() if k != "test"}))
    assert task.state is CellState.UNFINISHED
    assert main(task.command) == 0
    assert task.state is CellState.DONE
    assert json.loads(path.read_text()) == summary
