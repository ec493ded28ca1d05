"""The verb in process, with stubs in place of runs."""

import shlex
import signal
import subprocess
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from fedaux_pl.cli import main
from fedaux_pl.cli import sweep as verb
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps import launchers
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import resolve
from fedaux_pl.sweeps.sweep_file import read_sweep
from tests.sweeps.stubs import StubProcess, complete, write_run

FILE = """
title: a
base: [quickstart, {trainer.max_epochs: 2, trainer.accelerator: cpu}]
axes: {method: {FedAVG: methods/fedavg, FedAUX: {}}}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launchers, "_POLL", 0.001)
    monkeypatch.setattr(verb, "preload", lambda: None)
    path = tmp_path / "mini.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "mini.yaml"
    path.write_text(FILE)
    return resolve(read_sweep(path).cells)


@pytest.fixture
def tasks(file, resolved, tmp_path):
    """FedAVG and FedAUX."""
    return [replace(cell, root=tmp_path / "logs") for cell in resolved]


@pytest.fixture
def started(monkeypatch):
    """The names of the tasks that were started; those in ``fails`` fail."""

    def start(one, _):
        names.append(one.name)
        one.create()
        one.log.touch()
        fails = one.name in names.fails
        failure = one.failure, names.error
        return StubProcess(
            int(fails), 1, lambda: write_json_atomically(*failure) if fails else complete(one)
        )

    class Names(list):
        fails = ()
        error: ClassVar = {"error": "no disk"}

    names = Names()
    monkeypatch.setattr(verb, "start_worker", start)
    return names


ALL = ["method=FedAVG seed=0", "method=FedAUX seed=0"]


def test_all_cells_run_once(file, started, capsys):
    assert main(["sweep", file]) == 0
    assert started == ALL
    out = capsys.readouterr().out
    assert "2 cells: 2 missing" in out
    assert f"2 cells done; next: fedaux-pl report {file}" in out
    assert main(["sweep", file]) == 0
    assert started == ALL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.alfa", "1"], "there is no option --data.alfa"),
        (["--data.alpha", "-5", "--dry_run"], "--data.alpha: got -5.0; expected to be positive"),
        (["--data.alpha", "-5"], "--data.alpha: got -5.0; expected to be positive and finite"),
        (
            ["--trainer.precision", "64"],
            "--trainer.precision: got 64; expected one of 32-true, bf16-mixed, 16-mixed",
        ),
    ],
)
def test_what_a_run_refuses_ends_the_sweep_before_anything_runs(
    options, message, file, started, capsys
):
    assert main(["sweep", file, *options]) == 1
    assert f"the cell method=FedAVG seed=0: {message}" in capsys.readouterr().err
    assert started == []


def test_extra_arguments_reach_the_cells_and_the_report(file, started, capsys):
    more = ["--select", "method=FedAVG", "--seeds", "3", "--data.alpha", "1", "--root", "my logs"]
    assert main(["sweep", file, *more]) == 0
    assert started == ["method=FedAVG seed=3"]
    line = capsys.readouterr().out.splitlines()[-1].partition("next: ")[2]
    assert shlex.split(line) == [
        *("fedaux-pl", "report", file, "--root", "my logs", "--select", "method=FedAVG"),
        *("--seeds", "3", "--data.alpha", "1"),
    ]


def test_failed_cells_are_listed_and_retried_when_asked(file, tasks, started, capsys):
    started.fails = ("method=FedAVG seed=0",)
    assert main(["sweep", file]) == 1
    assert started == ALL  # the others went on
    said = capsys.readouterr()
    log = tasks[0].log.relative_to(tasks[0].root.parent)
    assert f"failed: method=FedAVG seed=0: no disk ({log})" in said.out
    assert "fedaux-pl sweep: error: failed: 1 of 2 cells; --retry" in said.err
    started.clear()
    started.fails = ()
    assert main(["sweep", file]) == 1
    assert started == []
    assert main(["sweep", file, "--retry"]) == 0
    assert started == ["method=FedAVG seed=0"]


def test_refused_data_stop_a_sweep_in_which_nothing_has_run(file, tasks, started, capsys):
    started.fails, started.error = ALL, {"error": "no data at data/x", "is_refused": True}
    for retry in ([], ["--retry"]):
        assert main(["sweep", file, *retry]) == 1
        assert started == ALL[:1]
        error = capsys.readouterr().err
        assert "the first cell has failed before its first round: no data at data/x (" in error
        started.clear()
    write_run(tasks[0], 1)  # one that could run
    assert main(["sweep", file, "--retry"]) == 1
    assert started == ALL


def test_ctrl_c_and_sigterm_end_with_130(file, monkeypatch, capsys):
    def interrupted(*_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(verb, "start_worker", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["sweep", file]) == 130
    assert "stopped; 2 cells: 2 missing; the same command continues" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


def test_dry_run_and_status_run_nothing(file, tasks, started, capsys):
    write_run(tasks[1], 1, seconds=2.5)
    write_json_atomically(tasks[0].failure, {"error": "no disk"})
    assert main(["sweep", file, "--dry_run"]) == 0
    head, _, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["method", "seed", "state", "rounds", "key"]
    assert lines[0] == ["FedAVG", "0", "failed", "0/2", tasks[0].key]
    assert lines[1] == ["FedAUX", "0", "unfinished", "1/2", tasks[1].key]
    assert " ".join(lines[3]) == "1 round left, about 3 s without pre-training"
    with held(tasks[1].lock):
        assert main(["sweep", file, "--status"]) == 0
    out = capsys.readouterr().out
    assert "2 cells: 1 running, 1 failed" in out
    assert "running: method=FedAUX seed=0, round 1 of 2 on" in out
    assert "failed: method=FedAVG seed=0: no disk" in out
    assert started == []


def test_print_writes_command_lines_and_nothing_else(file, tasks, capsys):
    write_run(tasks[0], 2)
    assert main(["sweep", file, "--launcher", "print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [fit] = (shlex.split(line) for line in lines)
    assert fit[:2] == ["fedaux-pl", "fit"]
    assert fit[-4:] == [
        *("--trainer.default_root_dir", f"logs/cells/{tasks[1].key}", "--ckpt_path", "last")
    ]
    assert (tasks[1].path / "cache").is_dir()
    assert tasks[1].read_description()["command"] == lines[0]


def test_slurm_gets_the_open_tasks(file, tasks, monkeypatch, capsys):
    write_run(tasks[0], 2)
    made, queue = [], set()
    monkeypatch.setattr(verb.launchers, "queued_jobs", lambda: queue)
    monkeypatch.setattr(
        verb.launchers, "create_executor", lambda *args: made.append(args) or "executor"
    )
    monkeypatch.setattr(verb.launchers, "submit", lambda cells, *_: ["77"] * len(cells))
    assert main(["sweep", file, "--launcher=slurm", "--slurm=partition=a=b", "--slurm=time=5"]) == 0
    [(folder, name, options)] = made
    assert (str(folder), name) == ("logs/slurm", "mini")
    assert options == {"partition": "a=b", "time": "5"}
    assert "job 77: method=FedAUX seed=0\n1 job; " in capsys.readouterr().out
    tasks[1].write_description(job="77")
    queue.add("77")
    assert main(["sweep", file, "--launcher=slurm"]) == 0
    assert capsys.readouterr().out.startswith("0 jobs, and 1 in the queue already; ")


def test_a_job_of_slurm_runs_a_cell(tasks):
    tasks[0].create()
    complete(tasks[0])
    assert subprocess.call([*verb._WORKER, tasks[0].as_json()]) == 0
    assert not tasks[0].log.exists()  # it was done before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give the sweep file first"),
        (["--jobs", "2", "a.yaml"], "give the sweep file first"),
        (["a.yaml", "--jobs", "0"], "--jobs: got 0; expected at least 1"),
        (["a.yaml", "--seeds", "a"], "--seeds: got a; expected integers"),
        (["a.yaml", "--select", "method"], "--select: got method; expected AXIS=LABEL"),
        (["a.yaml", "--slurm", "gpu"], "--slurm: got gpu; expected KEY=VALUE"),
        (["a.yaml", "--slurm", "partition=gpu"], "--slurm needs --launcher slurm"),
        (["a.yaml", "--dryrun"], "there is no option --dryrun (did you mean --dry_run?)"),
        (["a.yaml", "--launcher", "pbs"], "invalid choice: 'pbs'"),
    ],
)
def test_wrong_options_end_with_2(args, message, capsys):
    assert main(["sweep", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_job_for_each_gpu(tasks, monkeypatch):
    def on(**trainer):
        return [
            replace(cell, config=cell.config | {"trainer": cell.config["trainer"] | trainer})
            for cell in tasks
        ]

    cells, on_gpu = tasks, on(accelerator="auto")
    on_two = on(accelerator="auto", devices=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert verb._slots(None, on_gpu) == [{}]
    assert verb._slots(4, cells) == [{}] * 4  # a run's threads do not depend on the other jobs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert verb._slots(None, cells) == [{}]
    assert verb._slots(None, on_two) == [{}]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in verb._slots(None, on_gpu)] == ["0", "1"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in verb._slots(3, on_gpu)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in verb._slots(None, on_gpu)] == ["4", "GPU-7"]
