"""Submits the tasks of a sweep to SLURM, by submitit."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError, first_line
from fedaux_pl.sweeps.cells import Cell


def create_executor(folder: Path, name: str, options: Mapping[str, str]) -> Any:
    """Creates submitit's executor for SLURM.

    Args:
        folder: The folder of SLURM's logs and scripts.
        name: The name of the jobs.
        options: submitit's options for SLURM, such as partition, time (in minutes), gpus_per_node.

    Raises:
        ConfigurationError: If submitit is not installed, there is no SLURM, or an option is wrong.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigurationError(
            "the launcher slurm needs submitit: pip install 'fedaux-pl[slurm]', or choose "
            "--launcher print"
        ) from error
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
        given = {k: int(v) if v.isdecimal() else v for k, v in options.items()}
        named = {f"slurm_{option}": value for option, value in given.items()}
        executor.update_parameters(name=name, **named)
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        raise ConfigurationError(f"submitit refuses the launcher slurm: {first_line(error)}") from (
            error
        )
    return executor


def submit(tasks: Sequence[Cell], executor: Any) -> list[tuple[Cell, str]]:
    """Submits one job for each task; a cell starts after its pre-training.

    Args:
        tasks: The tasks; a pre-training comes before the cells that need it.
        executor: submitit's executor.

    Returns:
        The tasks with their jobs.
    """
    jobs: dict[str | None, str] = {}
    for task in tasks:
        # afterany: a cell whose pre-training has failed says so itself
        before = {} if task.needs not in jobs else {"dependency": f"afterany:{jobs[task.needs]}"}
        executor.update_parameters(slurm_additional_parameters=before)
        task.describe()
        jobs[task.key] = str(executor.submit(run_worker, task.as_json()).job_id)
    return [(task, jobs[task.key]) for task in tasks]


def run_worker(task: str) -> int:
    """Runs a task, given as JSON, in a process of its own inside its job; returns its status."""
    # -P: files in the current folder hide no package
    command = [sys.executable, "-P", "-m", "fedaux_pl.sweeps.worker", task]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own program
