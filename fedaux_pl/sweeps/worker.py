"""The process of one task: ``python -m fedaux_pl.sweeps.worker TASK``, the task as JSON.

It claims the folder of the task, runs the verb in it, and writes down how that ended.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NoReturn

from fedaux_pl.cli.entry import EXPECTED, INTERRUPTED, TERMINATED, run_verb
from fedaux_pl.cli.entry import main as run_main
from fedaux_pl.errors import FedauxError, UsageError, first_line
from fedaux_pl.sweeps.cell_lock import Busy, held
from fedaux_pl.sweeps.cells import Cell

BUSY = 75
"""The exit status if another process runs in the folder."""


def main(args: Sequence[str]) -> int:
    """Runs a task.

    Args:
        args: The task as JSON.

    Returns:
        The exit status: 0, 1 if it has failed, ``BUSY`` or ``INTERRUPTED``.
    """
    task = Cell.from_json(args[0])
    if _rank() > 0:  # another process of the same run, started by Lightning or SLURM
        return run_main(task.command)
    interruptions: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        interruptions.append(number)
        if len(interruptions) == 1:  # the terminal and the sweep both send one
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        task.create()
        with held(task.lock):
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


def _claimed(task: Cell, interruptions: Sequence[int]) -> int:
    if task.is_complete():  # by another sweep, while this process started
        return 0
    task.failure.unlink(missing_ok=True)
    started = task.description().get("started", _now())
    task.describe(started=started, host=socket.gethostname(), status=None, ended=None)
    if (problem := _failed_pretraining(task)) is not None:
        task.fail(status=1, error=problem, time=_now(), is_early=True)
        return 1
    _write_to_log(task)
    error = _run(task)
    if interruptions:
        return INTERRUPTED
    # at the start of a sweep, its other cells have refused settings and data, too
    is_early = isinstance(error, FedauxError | UsageError)
    if error is None and task.verb == "fit" and not task.is_complete():
        error = FedauxError(f"fit has ended before round {task.rounds}, or without its test")
    status = int(error is not None)
    if error is not None:
        task.fail(status=status, error=_in_one_line(error), time=_now(), is_early=is_early)
    task.describe(status=status, ended=_now())
    return status


def _run(task: Cell) -> BaseException | None:
    """Runs the verb; returns the error that has ended it."""
    try:
        run_verb(task.command)
    except SystemExit as ended:
        if ended.code == TERMINATED:
            raise KeyboardInterrupt from ended  # the next sweep resumes it
        return ended if ended.code else None
    except Exception as error:  # whatever it is, the other cells go on
        if isinstance(error, EXPECTED):
            print(f"fedaux-pl {task.verb}: error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        return error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return getattr(error, "message", f"it ended with status {error.code}").partition("\n")[0]
    kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
    return kind + first_line(error)


def _failed_pretraining(task: Cell) -> str | None:
    """Why the task cannot start; None if it can."""
    if task.needs is None:
        return None
    before = replace(task, verb="pretrain", key=task.needs)
    error = before.error()
    return None if error is None else f"its pre-training has failed: {error} ({before.log})"


def _write_to_log(task: Cell) -> None:
    """Sends all output of this process to the log."""
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
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
