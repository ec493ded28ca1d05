import sys

import pytest

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sweeps.slurm_launcher import create_executor, run_worker, submit
from tests.sweeps.stubs import complete, task

submitit = pytest.importorskip("submitit")


def test_one_job_for_each_task_after_its_pretraining(tmp_path, monkeypatch):
    executor = submitit.AutoExecutor(folder=tmp_path / "slurm", cluster="debug")
    dependencies = []
    update = executor.update_parameters

    def remember(**options):
        dependencies.append(options["slurm_additional_parameters"])
        update(**options)

    monkeypatch.setattr(executor, "update_parameters", remember)
    tasks = [
        task(tmp_path, "h", rounds=0, verb="pretrain"),
        task(tmp_path, "a", needs="h"),
        task(tmp_path, "b"),
        task(tmp_path, "c", needs="already trained"),
    ]
    submitted = []
    monkeypatch.setattr(
        executor, "submit", lambda *call, submit=executor.submit: _keep(submitted, submit(*call))
    )
    jobs = submit(tasks, executor)
    assert [one for one, _ in jobs] == tasks
    assert dependencies == [{}, {"dependency": f"afterany:{jobs[0][1]}"}, {}, {}]
    assert tasks[1].description()["command"] == tasks[1].line
    assert [job for _, job in jobs] == [job.job_id for job in submitted]
    calls = [job.submission() for job in submitted]
    assert [call.args for call in calls] == [(one.as_json(),) for one in tasks]
    assert {call.function for call in calls} == {run_worker}


def _keep(jobs, job):
    jobs.append(job)
    return job


def test_a_job_runs_the_worker(tmp_path):
    one = task(tmp_path, "a")
    one.create()
    complete(one)
    assert run_worker(one.as_json()) == 0
    assert not one.log.exists()  # it was done before


def test_options_of_slurm_are_checked(tmp_path, monkeypatch):
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
    with pytest.raises(ConfigurationError, match=r"pip install 'fedaux-pl\[slurm\]'"):
        create_executor(tmp_path, "a", {})
