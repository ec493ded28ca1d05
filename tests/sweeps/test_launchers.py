import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("submitit")

import submitit

from fedaux_pl.errors import ConfigurationError, FedauxError
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps import launchers, worker
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import Cell, CellState
from fedaux_pl.sweeps.launchers import (
    create_executor,
    queued_jobs,
    run_locally,
    submit,
    time_left,
)
from tests.sweeps.stubs import StubProcess, complete, task, write_run


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(launchers, "_POLL", 0.001)


def run(tasks, start, jobs=1):
    slots = [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(jobs)]
    run_locally(tasks, slots, start)


def test_each_job_has_a_slot_of_its_own(tmp_path, capsys):
    tasks = [task(tmp_path, f"c{i}") for i in range(5)]
    running, most, used = set(), [], []

    def start(one, environment):
        slot = environment["CUDA_VISIBLE_DEVICES"]
        assert slot not in running
        running.add(slot)
        most.append(len(running))
        used.append(slot)
        looks = 1 if one.key == "c0" else 4
        return StubProcess(0, looks, lambda: (complete(one), running.discard(slot)))

    run(tasks, start, jobs=2)
    assert max(most) == 2
    assert used[:3] == ["0", "1", "0"]
    assert all(one.state is CellState.DONE for one in tasks)
    out = capsys.readouterr().out
    assert "started: cell=c4 seed=0" in out
    assert "1 of 5 cells done; 8 rounds left, about 6 s" in out  # 1.5 s a round, two jobs
    assert "5 of 5 cells done; no rounds are left" in out


def test_killed_processes_and_failures_do_not_stop_the_others(tmp_path, capsys):
    tasks = [task(tmp_path, name) for name in ("killed", "left", "good")]

    def start(one, _):
        if one.key == "good":
            return StubProcess(0, 1, lambda: complete(one))
        one.create()
        one.log.touch()
        return StubProcess(-9 if one.key == "killed" else 3)

    run(tasks, start)
    assert [one.state for one in tasks] == [CellState.FAILED, CellState.FAILED, CellState.DONE]
    assert tasks[0].read_failure()["error"] == (
        "its process was ended by SIGKILL, perhaps for lack of memory"
    )
    assert tasks[1].read_failure()["error"] == "its process ended with status 3"
    assert f"({tasks[0].log})" in capsys.readouterr().out


@pytest.mark.parametrize("is_own", [False, True])
def test_a_cell_that_runs_is_waited_for(tmp_path, monkeypatch, is_own):
    """Of another sweep, or of this one: a process can outlive its server, which tells a status."""
    one = task(tmp_path, "a")
    lock = held(one.lock)
    looks = []

    def look(_):
        looks.append(one.state)
        if len(looks) == 3:
            complete(one)
            lock.__exit__(None, None, None)

    def start(one, _):
        lock.__enter__()
        return StubProcess(255)

    if not is_own:
        lock.__enter__()
    monkeypatch.setattr(launchers, "sleep", look)
    run([one], start if is_own else pytest.fail)
    assert looks[:3] == [CellState.RUNNING] * 3
    assert one.state is CellState.DONE
    assert not one.failure.exists()


def test_a_worker_that_finds_the_folder_taken_is_tried_again(tmp_path):
    one = task(tmp_path, "a")
    statuses = [worker.BUSY, 0]

    def start(one, _):
        status = statuses.pop(0)
        return StubProcess(status, 1, lambda: None if status else complete(one))

    run([one], start)
    assert not statuses


def _stub_verb(command):
    """Waits until both sweeps have started, and leaves what fit leaves."""
    folder = Path(command[command.index("--trainer.default_root_dir") + 1])
    with (folder / "runs.txt").open("a") as file:
        file.write(f"{os.getppid()}\n")
    root = folder.parents[1]
    (root / "sweeps" / str(os.getppid())).touch()
    while len(list((root / "sweeps").iterdir())) < 2:
        time.sleep(0.01)
    complete(task(root, folder.name))
    return 0


def _fork(one, environment):
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(worker.run_cell(one, _stub_verb))
    )
    process.start()
    return process


def test_two_sweeps_share_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_POLL", 0.02)
    (tmp_path / "sweeps").mkdir()
    tasks = [task(tmp_path, f"c{i}") for i in range(4)]
    context = multiprocessing.get_context("fork")
    sweeps = [context.Process(target=run, args=(tasks, _fork)) for _ in range(2)]
    for process in sweeps:
        process.start()
    for process in sweeps:
        process.join()
    assert [process.exitcode for process in sweeps] == [0, 0]
    assert all(one.state is CellState.DONE for one in tasks)
    runs = [(one.path / "runs.txt").read_text().split() for one in tasks]
    assert all(len(run) == 1 for run in runs)  # no cell ran twice
    assert {run[0] for run in runs} == {str(process.pid) for process in sweeps}


def test_an_interrupted_sweep_interrupts_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(launchers, "_REPEAT", 0.01)
    received = []

    def interrupted(*_):
        received.append("SIGINT")
        if len(received) == 2:  # the first one was too early
            os._exit(130)

    def wait():
        signal.signal(signal.SIGINT, interrupted)
        (tmp_path / "ready").write_text("")
        while True:
            time.sleep(0.1)

    def start(one, _):
        processes.append(multiprocessing.get_context("fork").Process(target=wait))
        processes[0].start()
        return processes[0]

    processes = []

    def look(_):
        if (tmp_path / "ready").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(launchers, "sleep", look)
    with pytest.raises(KeyboardInterrupt):
        run([task(tmp_path, "a")], start)
    assert processes[0].exitcode == 130


def test_one_job_of_slurm_for_each_task(tmp_path, monkeypatch):
    executor = submitit.AutoExecutor(folder=tmp_path / "slurm", cluster="debug")
    tasks = [task(tmp_path, "a"), task(tmp_path, "b")]
    jobs = []
    monkeypatch.setattr(
        executor, "submit", lambda *call, run=executor.submit: jobs.append(run(*call)) or jobs[-1]
    )
    ids = list(submit(tasks, executor, ["python", "-m", "worker"]))
    assert ids == [job.job_id for job in jobs]
    assert tasks[1].read_description()["command"] == tasks[1].shell_command
    assert [one.read_description()["job"] for one in tasks] == ids
    calls = [job.submission() for job in jobs]
    assert [call.args for call in calls] == [
        (["python", "-m", "worker", one.as_json()],) for one in tasks
    ]
    requeued = calls[1]._checkpoint_function()  # by submitit at a time limit
    assert (type(requeued.function), requeued.args) == (launchers.CellJob, calls[1].args)


def test_a_job_fails_if_its_process_does():
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        launchers.CellJob()(["sh", "-c", "exit 3"])


def test_a_full_queue_of_slurm_is_told_after_the_jobs_that_it_took(tmp_path):
    class Full:
        def __init__(self):
            self.free = 1

        def submit(self, *_):
            self.free -= 1
            if self.free < 0:  # what sbatch prints after two minutes of retries
                raise submitit.core.utils.FailedJobError("sbatch: retrying\nsbatch: error: no\n")
            return SimpleNamespace(job_id="7")

    jobs = submit([task(tmp_path, name) for name in "abc"], Full(), ["worker"])
    assert next(jobs) == "7"
    with pytest.raises(FedauxError, match=r"has taken 1 of 3 jobs \(sbatch: error: no\)"):
        next(jobs)


def test_jobs_in_the_queue_of_slurm(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 7; echo 12\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert queued_jobs() == {"7", "12"}
    squeue.write_text("#!/bin/sh\necho 'no controller' >&2; exit 1\n")
    with pytest.raises(FedauxError, match="no controller; try again"):
        queued_jobs()


def test_options_of_slurm_are_checked(tmp_path, monkeypatch):
    with monkeypatch.context() as without_slurm:
        without_slurm.setenv("PATH", "")
        with pytest.raises(ConfigurationError, match="srun"):
            create_executor(tmp_path, "a", {})
    monkeypatch.setattr("submitit.SlurmExecutor.affinity", classmethod(lambda _: 2))
    executor = create_executor(tmp_path, "a", {"partition": "gpu", "time": "600"})
    assert executor._executor.parameters["partition"] == "gpu"
    assert executor._executor.parameters["time"] == 600
    with pytest.raises(ConfigurationError, match="Unknown argument 'partitoin'"):
        create_executor(tmp_path, "a", {"partitoin": "gpu"})


def test_without_submitit_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigurationError, match=r"pip install -e '.\[slurm\]'"):
        create_executor(tmp_path, "a", {})


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
    assert time_left([a], 1) == "6 rounds left, about 12 s without pre-training"
    write_run(b, 10, seconds=9.5)
    same_method, same_clients = cell("c"), cell("d", method="FedBE")
    assert "16 rounds left, about 32 s" in time_left([a, b, same_method], 1)
    # the median of 4 rounds of 2 s and 10 of 10 s; two jobs
    assert "16 rounds left, about 56 s" in time_left([a, b, same_clients], 2)
    assert time_left([b], 1) == "no rounds are left"
    write_json_atomically(a.failure, {"error": "no disk"})
    assert "10 rounds left, about 20 s" in time_left([a, b, same_method], 1)
    text = time_left([b, cell("e", clients=3)], 1)
    assert "no estimate of the time (cells without a measured round of the same clients: 1)" in text
    assert "--select" in text
