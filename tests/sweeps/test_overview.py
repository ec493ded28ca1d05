import pytest

from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps import overview
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import CellFolder, ResolvedCell
from fedaux_pl.sweeps.estimate import estimate
from fedaux_pl.sweeps.sweep_file import Cell
from tests.sweeps.stubs import task, write_run


def cell(key, method="FedAvg", clients=20, private="Digits", rounds=10):
    config = {
        "trainer": {"max_epochs": rounds},
        "model": {
            "algorithm": {"class_path": method},
            "clients": {"resnet8": clients},
            "model_options": {},
        },
        "data": {"private": {"class_path": private}, "auxiliary": None},
    }
    return ResolvedCell(Cell({"method": method}, 0, ()), config, key)


def test_the_estimate_takes_the_closest_measured_rounds(tmp_path):
    write_run(CellFolder(tmp_path, "a"), 4, seconds=1.5)  # and 0.5 of averaging: 2 s a round
    a = cell("a")
    assert estimate([a], tmp_path).seconds == 6 * 2
    assert estimate([a, a], tmp_path).rounds == 6  # a cell counts once
    write_run(CellFolder(tmp_path, "b"), 10, seconds=9.5)
    b = cell("b", method="FedDF")
    assert estimate([a, b], tmp_path).seconds == 6 * 2
    same_method, same_clients = cell("c"), cell("d", method="FedBE")
    assert estimate([a, b, same_method], tmp_path).seconds == 6 * 2 + 10 * 2
    # the median of 4 rounds of 2 s and 10 of 10 s
    assert estimate([a, b, same_clients], tmp_path).seconds == 6 * 2 + 10 * 10
    found = estimate([a, b, same_clients], tmp_path)
    assert found.describe(2) == "16 rounds left, about 56 s without pre-training"
    assert estimate([b], tmp_path).describe(1) == "no rounds are left"
    write_json_atomically(CellFolder(tmp_path, "a").failure, {"error": "no disk"})
    assert estimate([a, b, same_method], tmp_path).seconds == 10 * 2  # without the failed one


def test_without_measured_rounds_it_says_how_to_get_them(tmp_path):
    write_run(CellFolder(tmp_path, "a"), 4)
    text = estimate([cell("a"), cell("b", clients=3)], tmp_path).describe(1)
    assert "no estimate" in text
    assert "cells without a measured round of the same clients: 1" in text
    assert "--select" in text


def test_the_table_shows_every_cell(tmp_path):
    write_run(CellFolder(tmp_path, "a"), 4)
    lines = overview.table([cell("a"), cell("b", rounds=2)], ["method", "C"], tmp_path).split("\n")
    assert [line.split() for line in lines] == [
        ["method", "C", "seed", "state", "rounds", "key"],
        ["FedAvg", "-", "0", "unfinished", "4/10", "a"],
        ["FedAvg", "-", "0", "missing", "0/2", "b"],
    ]


@pytest.fixture
def tasks(tmp_path):
    tasks = [task(tmp_path, key) for key in ("done", "failed", "running", "missing")]
    tasks.append(task(tmp_path, "h", rounds=0, verb="pretrain"))
    write_run(tasks[0].folder, 2)
    write_json_atomically(tasks[1].folder.failure, {"error": "no disk"})
    tasks[1].folder.log.touch()
    write_run(tasks[2].folder, 1)
    return tasks


def test_counts_and_details(tasks, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    with held(tasks[2].folder.lock):
        assert overview.counts(tasks) == "4 cells: 1 done, 1 running, 1 failed, 1 missing"
        assert overview.details(tasks) == [
            f"running: cell=running seed=0, round 1 of 2 on node7, {tasks[2].folder.log}",
            f"failed: cell=failed seed=0: no disk ({tasks[1].folder.log})",
        ]
    tasks[1].folder.log.unlink()  # its pre-training has failed
    assert overview.failures(tasks) == ["failed: cell=failed seed=0: no disk"]
