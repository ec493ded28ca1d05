"""Runs the cells of a sweep on this machine, some at a time, or submits them to SLURM."""

import json
import os
import signal
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedaux_pl.errors import INTERRUPTED, ConfigurationError, FedauxError, counted, first_line
from fedaux_pl.sweeps.cell_lock import is_held
from fedaux_pl.sweeps.cells import Cell, CellState
from fedaux_pl.sweeps.worker import BUSY

_POLL = 0.2  # seconds
_REPEAT = 1.0  # seconds between two interruptions of a process
_ENDED = (CellState.DONE, CellState.FAILED)


def run_locally(
    cells: Sequence[Cell],
    slots: Sequence[Mapping[str, str]],
    start: Callable[[Cell, Mapping[str, str]], BaseProcess],
) -> None:
    """Run cells in processes of their own, and wait for those that other processes run.

    Cells that are done, or have failed, do not run. ``slots`` are the environments of the jobs that
    run at the same time. After Ctrl-C all processes have ended.
    """
    pending = [cell for cell in cells if cell.state not in _ENDED]
    running: dict[int, tuple[Cell, BaseProcess, float]] = {}
    try:
        while pending or running:
            for slot, (cell, process, started) in list(running.items()):
                status = process.exitcode
                # a process survives its server, whose end gives it a status: the lock is held
                if status is None or (status != BUSY and is_held(cell.lock)):
                    continue
                del running[slot]
                if status == BUSY:
                    pending.insert(0, cell)
                else:
                    _record(cell, status)
                    _say_ended(cell, cells, len(slots), _duration(monotonic() - started))
                    _stop_if_none_can_run(cell, cells)
            for cell in list(pending):
                if len(running) == len(slots):
                    break
                if is_held(cell.lock):  # another sweep runs it
                    continue
                pending.remove(cell)
                if cell.state in _ENDED:  # the other sweep has run it
                    _say_ended(cell, cells, len(slots))
                    continue
                slot = next(i for i in range(len(slots)) if i not in running)
                word = "resumed" if cell.state is CellState.UNFINISHED else "started"
                print(f"{word}: {cell.name}", flush=True)
                running[slot] = cell, start(cell, slots[slot]), monotonic()
            sleep(_POLL)
    finally:  # after Ctrl-C: a run ends with the checkpoint of its last round
        while alive := [process for _, process, _ in running.values() if process.is_alive()]:
            for process in alive:  # again and again: a process that just starts ignores it
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            alive[0].join(_REPEAT)


def _record(cell: Cell, status: int) -> None:
    """Mark a cell as failed if its process could not do so itself."""
    if status in (0, INTERRUPTED) or cell.state in _ENDED:
        return
    text = f"its process ended with status {status}"
    if status < 0:
        text = f"its process was ended by {signal.Signals(-status).name}"
    if status == -signal.SIGKILL:
        text += ", perhaps for lack of memory"
    cell.mark_failed(status=status, error=text)


def _say_ended(cell: Cell, cells: Sequence[Cell], jobs: int, duration: str = "") -> None:
    """Print how a cell has ended, here or, without a duration, in another sweep."""
    problem = cell.problem() if cell.state is CellState.FAILED else ""
    done = sum(other.is_complete() for other in cells)
    progress = f"{done} of {len(cells)} cells done; {time_left(cells, jobs)}"
    parts = [f"{cell.state}: {cell.name}", duration, problem, progress]
    print(", ".join(filter(None, parts)), flush=True)


def _stop_if_none_can_run(cell: Cell, cells: Sequence[Cell]) -> None:
    is_refused = cell.read_failure().get("is_refused")
    if is_refused and not any(other.load_run().rounds for other in cells):
        raise FedauxError(
            f"the first cell has failed before its first round: {cell.problem()}; correct it and "
            "add --retry, or --select other cells (none was tried)"
        )


def time_left(cells: Sequence[Cell], jobs: int) -> str:
    """Return the rounds that are left, and their time by the median of the measured rounds.

    Rounds are taken from cells with the same method, clients and data, else the same clients.
    """
    measured: dict[str, list[float]] = defaultdict(list)
    left: list[tuple[int, tuple[str, str]]] = []
    for cell in cells:
        curve = cell.load_run().curve
        groups = _alike(cell)
        if len(curve) < cell.rounds and not cell.failure.is_file():  # it would run by --retry
            left.append((cell.rounds - len(curve), groups))
        seconds = curve.filter(regex="^seconds/").sum(axis=1)
        for group in groups:
            measured[group] += list(seconds)
    if not left:
        return "no rounds are left"
    text = f"{counted(sum(count for count, _ in left), 'round')} left"
    total = 0.0
    unknown = 0
    for count, (close, far) in left:
        known = measured[close] or measured[far]
        if known:
            total += count * statistics.median(known)
        else:
            unknown += 1
    if unknown:
        which = f"cells without a measured round of the same clients: {unknown}"
        return f"{text}; no estimate of the time ({which}): run one of them by --select first"
    return f"{text}, about {_duration(total / jobs)} without pre-training"


def _alike(cell: Cell) -> tuple[str, str]:
    """Return the groups of cells whose rounds take as long: the closest ones first."""
    model = cell.config["model"]
    clients = json.dumps([model["clients"], model["model_options"]], sort_keys=True)
    method = [model["algorithm"]["class_path"], clients]
    for role in ("private", "auxiliary"):
        source = cell.config["data"][role] or {}
        method.append(source.get("class_path"))
    return json.dumps(method), clients


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def create_executor(folder: Path, name: str, options: Mapping[str, str]) -> Any:
    """Create submitit's executor of jobs with a name and options such as partition and time."""
    try:
        import submitit

        executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
        named = {f"slurm_{k}": int(v) if v.isdecimal() else v for k, v in options.items()}
        executor.update_parameters(name=name, **named)
    except ImportError as error:
        raise ConfigurationError(
            "the launcher slurm needs submitit: run pip install -e '.[slurm]' in the clone of "
            "fedaux-pl, or choose --launcher print"
        ) from error
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        problem = first_line(error)
        raise ConfigurationError(f"submitit refuses the launcher slurm: {problem}") from error
    return executor


def queued_jobs() -> set[str]:
    """Return the ids of the jobs that wait or run in SLURM's queue."""
    command = ["squeue", "-h", "-o", "%A"]
    shown = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 - no user's words
    if shown.returncode:
        raise FedauxError(f"SLURM's queue cannot be read: {shown.stderr.strip()}; try again later")
    return set(shown.stdout.split())


class CellJob:
    """What a job runs: the process of a cell, whose failure is the job's.

    At its time limit, or preempted, submitit asks for a checkpoint and requeues the job, which
    resumes the cell after its last round.
    """

    def __call__(self, command: Sequence[str]) -> None:
        """Run a command line; raise CalledProcessError if it fails."""
        subprocess.check_call(command)  # noqa: S603 - our own worker

    def checkpoint(self, command: Sequence[str]) -> Any:
        """Return the same call."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, command)


def submit(cells: Sequence[Cell], executor: Any, command: Sequence[str]) -> Iterator[str]:
    """Submit jobs that run ``command CELL``; yield their ids, which cell.json keeps."""
    from submitit.core.utils import FailedJobError

    for number, cell in enumerate(cells):
        try:
            job = executor.submit(CellJob(), [*command, cell.as_json()]).job_id
        except FailedJobError as error:
            problem = str(error).strip().rpartition("\n")[2]  # sbatch tells of its retries first
            raise FedauxError(
                f"SLURM has taken {number} of {counted(len(cells), 'job')} ({problem}): the same "
                "command submits the others, once it takes more"
            ) from error
        cell.write_description(job=str(job))
        yield str(job)
