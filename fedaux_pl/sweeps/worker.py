"""The process of one task: ``python -m fedaux_pl.sweeps.worker TASK``, the task as JSON.

It claims the folder of the task, runs the verb in it, and writes down how that ended.
"""

import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from fedaux_pl.cli.entry import INTERRUPTED
from fedaux_pl.cli.entry import main as run_verb
from fedaux_pl.errors import first_line
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps.cell_lock import Busy, held
from fedaux_pl.sweeps.cells import PretrainingFolder
from fedaux_pl.sweeps.task import Task

BUSY = 75
"""The exit status if another process runs in the folder."""


def main(args: Sequence[str]) -> int:
    """Runs a task.

    Args:
        args: The task as JSON.

    Returns:
        The exit status: 0, 1 if it has failed, ``BUSY`` or ``INTERRUPTED``.
    """
    task = Task(**json.loads(args[0]))
    if _rank() > 0:  # another process of the same run, started by Lightning or SLURM
        return run_verb(task.command)
    interruptions: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        interruptions.append(number)
        if len(interruptions) == 1:  # the terminal and the sweep both send one
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        task.folder.create()
        with held(task.folder.lock):
            return _claimed(task, interruptions)
    except Busy:
        return BUSY
    except KeyboardInterrupt:
        return INTERRUPTED


def run_forked(task: str, environment: Mapping[str, str]) -> NoReturn:
    """Runs a task in a forked process, as ``python -m fedaux_pl.sweeps.worker TASK`` does.

    Args:
        task: The task as JSON.
        environment: Variables of the process, such as CUDA_VISIBLE_DEVICES.
    """
    import __main__

    os.environ.update(environment)
    # by these, Lightning starts the other processes of a run on several devices
    __main__.__spec__ = find_spec("fedaux_pl.sweeps.worker")
    sys.argv[1:] = [task]
    raise SystemExit(main([task]))


def _claimed(task: Task, interruptions: Sequence[int]) -> int:
    folder = task.folder
    if folder.is_complete(task.rounds):  # by another sweep, while this process started
        return 0
    folder.failure.unlink(missing_ok=True)
    started = folder.description().get("started", _now())
    task.prepare(started=started, host=socket.gethostname(), status=None, ended=None)
    if (problem := _failed_pretraining(task)) is not None:
        fail(task, 1, problem)
        return 1
    begin = _write_to_log(task)
    status, problem = _run(task)
    if interruptions:
        return INTERRUPTED
    if status == 0 and task.verb == "fit" and not folder.is_complete(task.rounds):
        status, problem = 1, f"fit has ended before round {task.rounds}, or without its test"
    if status:
        fail(task, status, problem or _last_error(folder.log.read_bytes()[begin:]))
    task.prepare(status=status, ended=_now())
    return 1 if status else 0


def fail(task: Task, status: int, error: str) -> None:
    """Marks a task as failed.

    Args:
        task: The task.
        status: The exit status of its process.
        error: The first line of the error.
    """
    failure = {"status": status, "error": error, "time": _now()}
    write_json_atomically(task.folder.failure, failure)


def _run(task: Task) -> tuple[int, str | None]:
    """Runs the verb; returns its exit status, and the error if it did not print one itself."""
    try:
        return run_verb(task.command), None
    except SystemExit as ended:
        return (ended.code if isinstance(ended.code, int) else 1), None
    except Exception as error:  # whatever it is, the other cells go on
        traceback.print_exc()
        return 1, f"{type(error).__name__}: {first_line(error)}"
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _failed_pretraining(task: Task) -> str | None:
    """Why the task cannot start; None if it can."""
    if task.needs is None:
        return None
    folder = PretrainingFolder(task.folder.root, task.needs)
    error = folder.error()
    return None if error is None else f"its pre-training has failed: {error} ({folder.log})"


def _write_to_log(task: Task) -> int:
    """Sends all output of this process to the log; returns where it begins there."""
    log = os.open(task.folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    begin = os.fstat(log).st_size
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    print(f"--- {_now()}, {socket.gethostname()}, process {os.getpid()}: {task.line}", flush=True)
    return begin


def _last_error(output: bytes) -> str:
    """The last error that a verb has printed."""
    found = re.findall(r"^fedaux-pl \w+: error: (.*)", output.decode(errors="replace"), re.M)
    return str(found[-1]) if found else "it ended without a message"


def _rank() -> int:
    """The rank of this process, as Lightning finds it before it starts."""
    names: tuple[Any, ...] = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
