"""Runs the tasks of a sweep on this machine, some at a time."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from fedaux_pl.cli.entry import INTERRUPTED
from fedaux_pl.sweeps.cell_lock import is_held
from fedaux_pl.sweeps.cells import State
from fedaux_pl.sweeps.task import Task
from fedaux_pl.sweeps.worker import BUSY, fail, run_forked

if TYPE_CHECKING:
    from fedaux_pl.sweeps.progress import Progress  # imports torch

_POLL = 0.2  # seconds
_REPEAT = 1.0  # seconds between two interruptions of a process
_PRELOADED = (
    "fedaux_pl.cli.verbs",
    "lightly.loss",
    "matplotlib.pyplot",
    "torch.utils.tensorboard",
)
_Running = dict[int, tuple[Task, BaseProcess]]


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


def start_worker(task: Task, environment: Mapping[str, str]) -> BaseProcess:
    """Starts the process of a task, in the process group of the sweep."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=run_forked, args=(task.as_json(), dict(environment)))
    process.start()
    return process


def run_locally(
    tasks: Sequence[Task],
    slots: Sequence[Mapping[str, str]],
    progress: "Progress",
    start: Callable[[Task, Mapping[str, str]], BaseProcess] = start_worker,
) -> None:
    """Runs tasks in processes of their own, and waits for those that other processes run.

    Args:
        tasks: The tasks to run; a pre-training comes before the cells that need it.
        slots: The environment of each job that runs at the same time.
        progress: Shows what happens.
        start: Starts the process of a task.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when all processes have ended.
    """
    pending = list(tasks)
    running: _Running = {}
    try:
        while pending or running:
            for slot, (task, process) in list(running.items()):
                status = process.exitcode
                # a process survives its server, whose end gives it a status: the lock is held
                if status is None or (status != BUSY and is_held(task.folder.lock)):
                    continue
                del running[slot]
                if status == BUSY:
                    pending.insert(0, task)
                else:
                    _record(task, status)
                    progress.ended(task)
            for task in _ready(pending, running):
                if len(running) == len(slots):
                    break
                if is_held(task.folder.lock):  # another sweep runs it
                    continue
                pending.remove(task)
                if task.state in (State.DONE, State.FAILED):  # the other sweep has run it
                    progress.ended(task)
                    continue
                slot = next(i for i in range(len(slots)) if i not in running)
                progress.started(task)
                running[slot] = task, start(task, slots[slot])
            progress.refresh()
            time.sleep(_POLL)
    finally:  # after Ctrl-C: a run ends with the checkpoint of its last round
        while alive := [process for _, process in running.values() if process.is_alive()]:
            for process in alive:  # again and again: a process that just starts ignores it
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            alive[0].join(_REPEAT)


def _ready(pending: Sequence[Task], running: _Running) -> list[Task]:
    """The tasks that wait for no pre-training."""
    open_keys = {task.key for task in pending} | {task.key for task, _ in running.values()}
    return [task for task in pending if task.needs not in open_keys]


def _record(task: Task, status: int) -> None:
    """Marks a task as failed if its process could not do so itself."""
    if status in (0, INTERRUPTED) or task.state in (State.DONE, State.FAILED):
        return
    problem = f"its process ended with status {status}"
    if status < 0:
        name = signal.Signals(-status).name
        more = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        problem = f"its process was ended by {name}{more}"
    fail(task, status, problem)
