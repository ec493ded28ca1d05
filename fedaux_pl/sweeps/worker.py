"""The process of one task: ``python -m fedaux_pl.sweeps.worker TASK``, the task as JSON.

It claims the folder of the task, runs the verb in it, and writes down how that ended.
"""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from fedaux_pl.cli.entry import main as run_main
from fedaux_pl.cli.entry import run_verb
from fedaux_pl.errors import FedauxError, UsageError, first_line
from fedaux_pl.files import write_json_atomically
from fedaux_pl.sweeps.cell_lock import Busy, held
from fedaux_pl.sweeps.cells import PretrainingFolder
from fedaux_pl.sweeps.task import Task

BUSY = 75
"""The exit status if another process runs in the folder."""

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def main(args: Sequence[str]) -> int:
    """Runs a task.

    Args:
        args: The task as JSON.

    Returns:
        The exit status: 0, 1 if it has failed, ``BUSY`` or ``INTERRUPTED``.
    """
    task = Task(**json.loads(args[0]))
    if _rank() > 0:  # another process of the same run, started by Lightning or SLURM
        return run_main(task.command)
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
    if "OMP_NUM_THREADS" in environment:  # torch read it when the server imported it
        import torch

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
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
        fail(task, 1, problem, is_early=True)
        return 1
    _write_to_log(task)
    error = _run(task)
    if interruptions:
        return INTERRUPTED
    if error is None and task.verb == "fit" and not folder.is_complete(task.rounds):
        error = RuntimeError(f"fit has ended before round {task.rounds}, or without its test")
    if error is not None:
        # a refused setting, or data: at the start of a sweep, its other cells have them, too
        fail(task, 1, _describe(error), isinstance(error, FedauxError | UsageError))
    task.prepare(status=int(error is not None), ended=_now())
    return int(error is not None)


def fail(task: Task, status: int, error: str, is_early: bool = False) -> None:
    """Marks a task as failed.

    Args:
        task: The task.
        status: The exit status of its process.
        error: The first line of the error.
        is_early: Whether settings or data were refused.
    """
    failure = {"status": status, "error": error, "time": _now(), "is_early": is_early}
    write_json_atomically(task.folder.failure, failure)


def _run(task: Task) -> BaseException | None:
    """Runs the verb; returns the error that has ended it."""
    try:
        run_verb(task.command)
    except SystemExit as ended:
        return ended if ended.code else None
    except Exception as error:  # whatever it is, the other cells go on
        if _is_expected(error):
            print(f"fedaux-pl {task.verb}: error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        return error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def _is_expected(error: BaseException) -> bool:
    return isinstance(error, FedauxError | FloatingPointError | OSError)


def _describe(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, SystemExit):
        return getattr(error, "message", f"it ended with status {error.code}").partition("\n")[0]
    return (
        first_line(error) if _is_expected(error) else f"{type(error).__name__}: {first_line(error)}"
    )


def _failed_pretraining(task: Task) -> str | None:
    """Why the task cannot start; None if it can."""
    if task.needs is None:
        return None
    folder = PretrainingFolder(task.folder.root, task.needs)
    error = folder.error()
    return None if error is None else f"its pre-training has failed: {error} ({folder.log})"


def _write_to_log(task: Task) -> None:
    """Sends all output of this process to the log."""
    log = os.open(task.folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    print(f"--- {_now()}, {socket.gethostname()}, process {os.getpid()}: {task.line}", flush=True)


def _rank() -> int:
    """The rank of this process, as Lightning finds it before it starts."""
    names: tuple[Any, ...] = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
