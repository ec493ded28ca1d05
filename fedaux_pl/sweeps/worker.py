"""The process of a cell: claims its folder, runs its command line, and notes how that ended."""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from fedaux_pl.errors import EXPECTED, INTERRUPTED, TERMINATED, FedauxError, first_line
from fedaux_pl.sweeps.cell_lock import held
from fedaux_pl.sweeps.cells import Cell

BUSY = 75
"""The exit status if another process runs in the folder."""

Run = Callable[[Sequence[str]], object]
"""Runs a command line of ``fedaux-pl``; raises what ends it."""


def run_cell(cell: Cell, run: Run) -> int:
    """Run a cell, whose output goes to its log; return 0, 1 if it fails, BUSY or INTERRUPTED."""
    interruptions: list[int] = []

    def interrupt(number: int, *_: Any) -> None:
        interruptions.append(number)
        if len(interruptions) == 1:  # the terminal and the sweep both send one
            raise KeyboardInterrupt

    try:
        ranks = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID")]
        # another process of the same run, started by Lightning or SLURM
        if int(next(filter(None, ranks), 0)) > 0:
            return int(_run(cell, run) is not None)
        signal.signal(signal.SIGINT, interrupt)
        cell.create()
        with held(cell.lock):
            return _run_claimed(cell, run, interruptions)
    except BlockingIOError:
        return BUSY
    except KeyboardInterrupt:
        return INTERRUPTED


def _run_claimed(cell: Cell, run: Run, interruptions: Sequence[int]) -> int:
    if cell.is_complete():  # by another sweep, while this process started
        return 0
    cell.failure.unlink(missing_ok=True)
    started = cell.read_description().get("started", _now())
    cell.write_description(started=started, host=socket.gethostname(), status=None, ended=None)
    log = os.open(cell.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    where = f"{socket.gethostname()}, process {os.getpid()}"
    print(f"--- {_now()}, {where}: {cell.shell_command}", flush=True)
    error = _run(cell, run)
    if interruptions:
        return INTERRUPTED
    # at the start of a sweep, its other cells have refused settings and data, too
    is_refused = isinstance(error, FedauxError)
    if error is None and not cell.is_complete():
        error = FedauxError(f"fit has ended before round {cell.rounds}, or without its test")
    if error is not None:
        problem = first_line(error)
        if isinstance(error, SystemExit):
            problem = f"it ended with status {error}"
        elif not isinstance(error, EXPECTED):
            problem = f"{type(error).__name__}: {problem}"
        cell.mark_failed(status=1, error=problem, time=_now(), is_refused=is_refused)
    status = int(error is not None)
    cell.write_description(status=status, ended=_now())
    return status


def _run(cell: Cell, run: Run) -> BaseException | None:
    """Run the command line; return the error that has ended it."""
    try:
        run(cell.command)
    except SystemExit as ended:
        if ended.code == TERMINATED:
            raise KeyboardInterrupt from ended  # the next sweep resumes it
        return ended if ended.code else None
    except Exception as error:  # whatever it is, the other cells go on
        if isinstance(error, EXPECTED):
            print(f"fedaux-pl fit: error: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        return error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
