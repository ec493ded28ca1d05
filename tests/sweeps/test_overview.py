import pytest

from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps import overview
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import Cell
from tests.sweeps.stubs import task, write_run


@pytest.fixture
def cell(tmp_path):
    def cell(key, method="FedAvg", clients=20, rounds=10):
        model = {"clients": {"resnet8": clients}, "model_options": {}}
        config = {
            "model": {**model, "algorithm": {"class_path": method}},
            "data": {"private": {"class_path": "Digits"}, "auxiliary": None},
        }
        about = {"root": tmp_path, "key": key, "rounds": rounds, "config": config}
        return Cell({"method": method}, 0, (), **about)

    return cell


def test_the_time_left_by_the_closest_measured_rounds(cell):
    a, b = cell("a"), cell("b", method="FedDF")
    write_run(a, 4, seconds=1.5)  # and 0.5 of averaging: 2 s a round
    assert overview.time_left([a, a], 1) == "6 rounds left, about 12 s without pre-training"
    write_run(b, 10, seconds=9.5)
    same_method, same_clients = cell("c"), cell("d", method="FedBE")
    assert "16 rounds left, about 32 s" in overview.time_left([a, b, same_method], 1)
    # the median of 4 rounds of 2 s and 10 of 10 s; two jobs
    assert "16 rounds left, about 56 s" in overview.time_left([a, b, same_clients], 2)
    assert overview.time_left([b], 1) == "no rounds are left"
    write_json_atomically(a.failure, {"error": "no disk"})
    assert "10 rounds left, about 20 s" in overview.time_left([a, b, same_method], 1)
    text = overview.time_left([b, cell("e", clients=3)], 1)
    assert "no estimate of the time (cells without a measured round of the same clients: 1)" in text
    assert "--select" in text


def test_the_table_shows_every_cell(cell):
    cells = [cell("a"), cell("b", rounds=2)]
    write_run(cells[0], 4)
    lines = overview.table(cells, ["method", "C"]).split("\n")
    assert [line.split() for line in lines] == [
        ["method", "C", "seed", "state", "rounds", "key"],
        ["FedAvg", "-", "0", "unfinished", "4/10", "a"],
        ["FedAvg", "-", "0", "missing", "0/2", "b"],
    ]


def test_counts_and_details(tmp_path, monkeypatch):
    tasks = [task(tmp_path, key) for key in ("done", "failed", "running", "missing")]
    tasks.append(task(tmp_path, "h", rounds=0, verb="pretrain"))
    _, failed, running, *_ = tasks
    write_run(tasks[0], 2)
    write_json_atomically(failed.failure, {"error": "no disk"})
    failed.log.touch()
    write_run(running, 1)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    with held(running.lock):
        assert overview.counts(tasks) == "4 cells: 1 done, 1 running, 1 failed, 1 missing"
        assert overview.details(tasks) == [
            f"running: cell=running seed=0, round 1 of 2 on node7, {running.log}",
            f"failed: cell=failed seed=0: no disk ({failed.log})",
        ]
    failed.log.unlink()  # its pre-training has failed
    assert overview.failures(tasks) == ["failed: cell=failed seed=0: no disk"]
