"""Runs the tasks of a sweep on this machine, some at a time."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from time import monotonic, sleep

from fedaux_pl.cli.entry import INTERRUPTED
from fedaux_pl.errors import FedauxError
from fedaux_pl.sweeps.cell_lock import is_held
from fedaux_pl.sweeps.cells import Cell, State
from fedaux_pl.sweeps.overview import format_seconds, problem, time_left
from fedaux_pl.sweeps.worker import BUSY, run_forked

_POLL = 0.2  # seconds
_REPEAT = 1.0  # seconds between two interruptions of a process
_PRELOADED = (
    "fedaux_pl.cli.verbs",
    "lightly.loss",
    "matplotlib.pyplot",
    "torch.utils.tensorboard",
)
_Running = dict[int, tuple[Cell, BaseProcess]]


def preload() -> None:
    """Starts the server that forks the processes of the tasks, and returns at once.

    It imports the packages once for all of them, which takes several seconds, and does nothing
    else: a process that had used CUDA could not be forked.
    """
    # by this variable of torch, asking whether there is a GPU does not count as using CUDA
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # files in the current folder hide no package
    forkserver.set_forkserver_preload(list(_PRELOADED))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server inherits
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def start_worker(task: Cell, environment: Mapping[str, str]) -> BaseProcess:
    """Starts the process of a task, in the process group of the sweep."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=run_forked, args=(task.as_json(), dict(environment)))
    process.start()
    return process


def run_locally(
    tasks: Sequence[Cell],
    slots: Sequence[Mapping[str, str]],
    cells: Sequence[Cell],
    start: Callable[[Cell, Mapping[str, str]], BaseProcess] = start_worker,
) -> None:
    """Runs tasks in processes of their own, and waits for those that other processes run.

    Args:
        tasks: The tasks to run; a pre-training comes before the cells that need it.
        slots: The environment of each job that runs at the same time.
        cells: All cells of the sweep, for the time left.
        start: Starts the process of a task.

    Raises:
        FedauxError: If settings or data are refused before any cell has a round: no cell can run.
        KeyboardInterrupt: After Ctrl-C, when all processes have ended.
    """
    pending = list(tasks)
    running: _Running = {}
    starts: dict[str, float] = {}
    try:
        while pending or running:
            for slot, (task, process) in list(running.items()):
                status = process.exitcode
                # a process survives its server, whose end gives it a status: the lock is held
                if status is None or (status != BUSY and is_held(task.lock)):
                    continue
                del running[slot]
                if status == BUSY:
                    pending.insert(0, task)
                else:
                    _record(task, status)
                    _say_ended(task, starts, cells, len(slots))
                    _stop_if_none_can_run(task, cells)
            for task in _ready(pending, running):
                if len(running) == len(slots):
                    break
                if is_held(task.lock):  # another sweep runs it
                    continue
                pending.remove(task)
                if task.state in (State.DONE, State.FAILED):  # the other sweep has run it
                    _say_ended(task, starts, cells, len(slots))
                    continue
                slot = next(i for i in range(len(slots)) if i not in running)
                word = "resumed" if task.state is State.UNFINISHED else "started"
                print(f"{word}: {task.name}", flush=True)
                starts[task.key] = monotonic()
                running[slot] = task, start(task, slots[slot])
            sleep(_POLL)
    finally:  # after Ctrl-C: a run ends with the checkpoint of its last round
        while alive := [process for _, process in running.values() if process.is_alive()]:
            for process in alive:  # again and again: a process that just starts ignores it
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            alive[0].join(_REPEAT)


def _say_ended(task: Cell, starts: dict[str, float], cells: Sequence[Cell], jobs: int) -> None:
    """Says how a task has ended, here or in another sweep."""
    parts = [f"{task.state}: {task.name}"]
    if task.key in starts:
        parts.append(format_seconds(monotonic() - starts.pop(task.key)))
    if task.state is State.FAILED:
        parts.append(problem(task))
    if task.verb == "fit":
        done = sum(cell.is_complete() for cell in cells)
        parts.append(f"{done} of {len(cells)} cells done; {time_left(cells, jobs)}")
    print(", ".join(parts), flush=True)


def _stop_if_none_can_run(task: Cell, cells: Sequence[Cell]) -> None:
    is_refused = task.state is State.FAILED and task.has_failed_early()
    if is_refused and not any(cell.run() for cell in cells):
        raise FedauxError(
            f"the first cell has failed before its first round: {problem(task)}; correct it and "
            "add --retry, or --select other cells (none was tried)"
        )


def _ready(pending: Sequence[Cell], running: _Running) -> list[Cell]:
    """The tasks that wait for no pre-training."""
    open_keys = {task.key for task in pending} | {task.key for task, _ in running.values()}
    return [task for task in pending if task.needs not in open_keys]


def _record(task: Cell, status: int) -> None:
    """Marks a task as failed if its process could not do so itself."""
    if status in (0, INTERRUPTED) or task.state in (State.DONE, State.FAILED):
        return
    text = f"its process ended with status {status}"
    if status < 0:
        name = signal.Signals(-status).name
        more = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        text = f"its process was ended by {name}{more}"
    task.fail(status=status, error=text)
