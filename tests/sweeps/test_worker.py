import json
import multiprocessing
import os
import signal
import sys
import time

import pytest

from fedaux_pl.errors import DataNotFoundError, UsageError
from fedaux_pl.sweeps import worker
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import CellState
from tests.sweeps.stubs import complete, task


@pytest.fixture
def keep_output():
    """Workers send their output to a log: the test gets its own back."""
    saved, handler = [os.dup(1), os.dup(2)], signal.getsignal(signal.SIGINT)
    yield
    for number, copy in enumerate(saved, start=1):
        os.dup2(copy, number)
        os.close(copy)
    signal.signal(signal.SIGINT, handler)


def raising(error):
    def verb(_):
        raise error

    return verb


@pytest.fixture
def run(monkeypatch, keep_output):
    """Runs the worker of a task whose verb is a stub."""

    def run(one, verb):
        with open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err:
            monkeypatch.setattr(sys, "stdout", out)  # in place of pytest's
            monkeypatch.setattr(sys, "stderr", err)
            return worker.run_cell(one, verb)

    return run


def test_a_run_is_described_and_logged(tmp_path, run):
    one = task(tmp_path, "a", method="FedAVG")

    def verb(command):
        assert one.state is CellState.RUNNING
        os.write(1, b"round 1\n")
        assert command == [
            *("fit", "--config", "quickstart"),
            *("--trainer.default_root_dir", str(tmp_path / "cells" / "a"), "--ckpt_path", "last"),
        ]
        complete(one)
        return 0

    assert run(one, verb) == 0
    assert one.state is CellState.DONE
    about = one.read_description()
    assert about["coordinates"] == {"method": "FedAVG"}
    assert (about["seed"], about["status"]) == (0, 0)
    assert about["command"].startswith("fedaux-pl fit --config quickstart")
    assert about["version"]
    assert about["started"] <= about["ended"]
    first, second = one.log.read_text().splitlines()
    assert first.endswith(about["command"])
    assert second == "round 1"


def test_a_second_run_appends_to_the_log_and_forgets_the_failure(tmp_path, run):
    one = task(tmp_path, "a")
    assert run(one, raising(OSError("no disk\nmore"))) == 1
    assert one.state is CellState.FAILED
    assert "fedaux-pl fit: error: no disk\nmore\n" in one.log.read_text()
    assert one.read_failure()["error"] == "no disk"
    content = json.loads(one.failure.read_text())
    assert content["status"] == 1
    assert content["time"]
    started = one.read_description()["started"]
    assert run(one, lambda _: complete(one)) == 0
    assert one.state is CellState.DONE
    assert not one.failure.exists()
    assert one.read_description()["started"] == started
    assert one.log.read_text().count("---") == 2


@pytest.mark.parametrize(
    ("error", "text", "is_refused"),
    [
        (RuntimeError("CUDA out of memory\nmore"), "RuntimeError: CUDA out of memory", False),
        (UsageError("data.alpha is wrong"), "data.alpha is wrong", True),
        (DataNotFoundError("no images at data/x"), "no images at data/x", True),
        (SystemExit(3), "it ended with status 3", False),
    ],
)
def test_exceptions_and_exits_are_failures(tmp_path, run, error, text, is_refused):
    one = task(tmp_path, "a")
    assert run(one, raising(error)) == 1
    assert one.read_failure()["error"] == text
    assert ("Traceback" in one.log.read_text()) is isinstance(error, RuntimeError)
    assert one.read_failure()["is_refused"] is is_refused


def test_a_run_that_ends_early_is_a_failure(tmp_path, run):
    one = task(tmp_path, "a", rounds=7)
    assert run(one, lambda _: 0) == 1
    assert "before round 7" in one.read_failure()["error"]


def test_what_another_process_does_or_has_done_is_not_done_again(tmp_path, run):
    one = task(tmp_path, "a")
    with held(one.lock):
        assert run(one, pytest.fail) == worker.BUSY
    complete(one)
    assert run(one, pytest.fail) == 0


def _interrupted_main(one, pipe):
    def verb(_):
        pipe.send("runs")
        try:
            while True:
                time.sleep(0.1)
        except KeyboardInterrupt:  # as Lightning does
            os.kill(os.getpid(), signal.SIGINT)  # a second one changes nothing
            raise SystemExit(1) from None

    raise SystemExit(worker.run_cell(one, verb))


def test_ctrl_c_is_no_failure(tmp_path):
    one = task(tmp_path, "a")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_interrupted_main, args=(one, there)
    )
    process.start()
    assert here.recv() == "runs"
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == worker.INTERRUPTED
    assert one.state is CellState.MISSING
    assert not one.failure.exists()


def test_other_processes_of_a_run_only_run_the_verb(tmp_path, run, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    one = task(tmp_path, "a")
    commands = []
    assert run(one, commands.append) == 0
    assert run(one, raising(OSError("no disk"))) == 1
    assert commands == [one.command]
    assert not one.path.exists()
