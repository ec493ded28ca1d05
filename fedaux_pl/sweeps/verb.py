"""``fedaux-pl sweep FILE``: runs all cells of a sweep file, and resumes what is there."""

import argparse
import os
import shlex
from collections.abc import Sequence

from fedaux_pl.cli.entry import raised_by_sigterm
from fedaux_pl.errors import FedauxError, counted
from fedaux_pl.sweeps import overview
from fedaux_pl.sweeps.cells import Cell, State, plan, resolve
from fedaux_pl.sweeps.local_launcher import preload, run_locally
from fedaux_pl.sweeps.options import SweepParser
from fedaux_pl.sweeps.slurm_launcher import create_executor, submit
from fedaux_pl.sweeps.sweep_file import read_sweep

_LAUNCHERS = ("local", "slurm", "print")


def sweep(args: Sequence[str]) -> None:
    """Runs the cells of a sweep, each a run of ``fedaux-pl fit`` in a folder of its own.

    Args:
        args: The command line after the verb.

    Raises:
        ConfigurationError: If the file, or an option of a cell, is wrong; nothing has run then.
        FedauxError: If cells have failed; the others are done.
        SystemExit: With status 2 if an own option is wrong.
    """
    options = _parse(args)
    is_shown = options.dry_run or options.status
    described = read_sweep(options.file, options.extra, options.seeds, options.select)
    if options.launcher == "local" and not is_shown:
        preload()  # while this process imports the packages, too
    is_checked = options.dry_run or not options.status
    cells = resolve(described.cells, options.root, check=is_checked)
    tasks = plan(cells)
    if is_shown:
        if options.dry_run:
            print(overview.table(cells, list(described.axes)))
        print(overview.counts(tasks))
        for line in overview.details(tasks) if options.status else ():
            print(line)
        print(overview.time_left(cells, len(_slots(options.jobs, cells))))
    elif options.launcher == "local":
        _run(tasks, options)
    else:
        _hand_over(_open_tasks(tasks, options.retry), described.name, options)


def _parse(args: Sequence[str]) -> argparse.Namespace:
    parser = SweepParser(
        "sweep",
        "Runs every cell of a sweep file by `fedaux-pl fit`. Cells that are done are skipped, "
        "unfinished ones are resumed: the same command continues a sweep.",
    )
    add = parser.add_argument
    add("--jobs", type=int, help="runs at a time (default: one per GPU, else 1)")
    add("--retry", action="store_true", help="run failed cells again")
    about = "run here, submit to SLURM, or print the command lines (default: local)"
    add("--launcher", choices=_LAUNCHERS, default=_LAUNCHERS[0], help=about)
    about = "an option of the SLURM jobs, such as partition=gpu or time=600; may be repeated"
    add("--slurm", action="append", default=[], metavar="KEY=VALUE", help=about)
    add("--dry_run", action="store_true", help="only check and show the cells, and the time left")
    add("--status", action="store_true", help="only show how far the cells are")
    options = parser.parse(args)
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, but is {options.jobs}")
    if wrong := [text for text in options.slurm if "=" not in text]:
        parser.error(f"--slurm must be KEY=VALUE, but is {wrong[0]}")
    if options.slurm and options.launcher != "slurm":
        parser.error("--slurm needs --launcher slurm")
    options.slurm = dict(text.split("=", 1) for text in options.slurm)
    return options


def _open_tasks(tasks: Sequence[Cell], retry: bool) -> list[Cell]:
    """The tasks to run: cells that are not done, and the pre-trainings that they need."""
    if retry:
        for task in tasks:
            if task.state is State.FAILED:
                task.failure.unlink(missing_ok=True)
    left = [task for task in tasks if task.state not in (State.DONE, State.FAILED)]
    needed = {task.needs for task in left}
    return [task for task in left if task.verb == "fit" or task.key in needed]


def _run(tasks: Sequence[Cell], options: argparse.Namespace) -> None:
    """Runs the tasks on this machine."""
    fits = [task for task in tasks if task.verb == "fit"]
    left = _open_tasks(tasks, options.retry)
    print(overview.counts(tasks), flush=True)
    try:
        with raised_by_sigterm(KeyboardInterrupt()):
            run_locally(left, _slots(options.jobs, fits), fits)
    except KeyboardInterrupt:
        print(f"stopped; {overview.counts(tasks)}; the same command continues")
        raise
    for line in overview.failures(tasks):
        print(line)
    states = [task.state for task in fits]
    total = counted(len(fits), "cell")
    if failed := states.count(State.FAILED):
        raise FedauxError(f"failed: {failed} of {total}; --retry runs them again")
    if undone := len(fits) - states.count(State.DONE):
        raise FedauxError(f"unfinished: {undone} of {total}; the same command resumes them")
    print(f"{total} done; next: {_report_line(options)}")


def _hand_over(tasks: Sequence[Cell], name: str, options: argparse.Namespace) -> None:
    """Submits the tasks to SLURM, or prints their command lines."""
    idle = [task for task in tasks if task.state is not State.RUNNING]
    if options.launcher == "print":
        for task in idle:
            task.describe()
            print(task.line)
        return
    executor = create_executor(options.root / "slurm", name, options.slurm)
    for task, job in submit(idle, executor):
        print(f"job {job}: {task.name}")
    print(f"{len(idle)} jobs; `fedaux-pl sweep ... --status` shows how far they are")


def _slots(jobs: int | None, cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The environments of the jobs that run at a time: each on a GPU of its own, if it uses one."""
    import torch

    trainers = [cell.config["trainer"] for cell in cells]
    uses_one = all(t["devices"] in (1, "1") and t["accelerator"] != "cpu" for t in trainers)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if not uses_one or not gpus or not torch.cuda.is_available():
        return [{}] * (jobs or 1)
    return [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} for i in range(jobs or len(gpus))]


def _report_line(options: argparse.Namespace) -> str:
    """The command that reports the same cells."""
    select = [f"--select={axis}={','.join(labels)}" for axis, labels in options.select.items()]
    seeds = [] if options.seeds is None else ["--seeds", ",".join(map(str, options.seeds))]
    root = [] if str(options.root) == "logs" else ["--root", str(options.root)]
    own = [*root, *select, *seeds]
    return shlex.join(["fedaux-pl", "report", options.file, *own, *options.extra])
