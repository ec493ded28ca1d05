"""``fedaux-pl sweep FILE``: runs all cells of a sweep file, and resumes what is there.

``python -m fedaux_pl.cli.sweep CELL`` is the process of one cell, given as JSON.
"""

import argparse
import multiprocessing
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import pandas as pd

from fedaux_pl.cli.entry import Parser, handled, raised_by_sigterm, run_verb
from fedaux_pl.errors import FedauxError, counted, did_you_mean
from fedaux_pl.reports.formats import TableItem, to_text
from fedaux_pl.sweeps import launchers
from fedaux_pl.sweeps.cell_lock import holder
from fedaux_pl.sweeps.cells import Cell, CellState, distinct, resolve
from fedaux_pl.sweeps.sweep_file import check_metrics, read_sweep
from fedaux_pl.sweeps.worker import run_cell

_LAUNCHERS = ("local", "slurm", "print")
_OPTIONS_OF_FIT = (
    "config",
    "model",
    "data",
    "trainer",
    "seed_everything",
    "ckpt_path",
    "print_config",
    "help",
)
# -P: files in the current folder hide no package
_WORKER = (sys.executable, "-P", "-m", "fedaux_pl.cli.sweep")


class SweepParser(Parser):
    """A parser of ``VERB FILE [own options] [options of fit]``."""

    def __init__(self, verb: str, description: str) -> None:
        usage = f"fedaux-pl {verb} FILE [options below] [options of fit, for all cells]"
        super().__init__(verb, description, usage)
        add = self.add_argument
        add("--root", type=Path, default=Path("logs"), help="folder of all output (default: logs)")
        about = "only the cells with these labels; may be repeated"
        add("--select", action="append", default=[], metavar="AXIS=LABEL[,LABEL...]", help=about)
        add("--seeds", metavar="0,1,2", help="seeds in place of those in the file")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Parse a command line; ``file`` and the options of fit, ``extra``, are added to it."""
        file, *rest = list(args) or [""]
        if file in ("-h", "--help"):
            self.print_help()
            self.exit()
        if not file or file.startswith("-"):
            self.error("give the sweep file first, such as paper/table1")
        options, extra = self.parse_known_args(rest)
        options.file = file
        options.extra = extra
        for argument in extra:
            name, _, _ = argument.partition("=")
            is_option = name.startswith("--") and "." not in name
            if is_option and name.removeprefix("--") not in _OPTIONS_OF_FIT:
                known = [option for option in self._option_string_actions if option[:2] == "--"]
                self.error(f"there is no option {name}{did_you_mean(name, known)}")
        if options.seeds is not None:
            seeds = options.seeds.split(",")
            if not all(seed.isdecimal() for seed in seeds):
                wanted = "integers from 0 on such as 0,1,2"
                self.error(f"--seeds: got {options.seeds}; expected {wanted}")
            options.seeds = [int(seed) for seed in seeds]
        select: dict[str, list[str]] = {}
        for text in options.select:
            axis, _, labels = text.partition("=")
            if not labels:
                self.error(f"--select: got {text}; expected AXIS=LABEL[,LABEL...]")
            select.setdefault(axis, []).extend(labels.split(","))
        options.select = select
        return options


def sweep(args: Sequence[str]) -> None:
    """Run the cells of a sweep, each a run of ``fedaux-pl fit`` in a folder of its own."""
    options = _parse(args)
    is_shown = options.dry_run or options.status
    described = read_sweep(options.file, options.extra, options.seeds, options.select)
    if options.launcher == "local" and not is_shown:
        preload()  # while this process imports the packages, too
    is_checked = options.dry_run or not options.status
    labeled = resolve(described.cells, options.root, check=is_checked)
    check_metrics(described, labeled)
    cells = distinct(labeled)
    if options.dry_run:
        print(_table(labeled, list(described.axes)))
    if is_shown:
        print(_counts(cells))
        if options.status:
            _print_running(cells)
            _print_failures(cells)
        print(launchers.time_left(cells, len(_slots(options.jobs, cells))))
        return
    for cell in cells if options.retry else ():
        if cell.state is CellState.FAILED:
            cell.failure.unlink(missing_ok=True)
    if options.launcher == "local":
        _run(cells, options)
    else:
        _hand_over(cells, described.name, options)


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
        parser.error(f"--jobs: got {options.jobs}; expected at least 1")
    for text in options.slurm:
        if "=" not in text:
            parser.error(f"--slurm: got {text}; expected KEY=VALUE")
    if options.slurm and options.launcher != "slurm":
        parser.error("--slurm needs --launcher slurm")
    options.slurm = dict(text.split("=", 1) for text in options.slurm)
    return options


def _run(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Run the cells on this machine."""
    print(_counts(cells), flush=True)
    try:
        with raised_by_sigterm(KeyboardInterrupt()):
            launchers.run_locally(cells, _slots(options.jobs, cells), start_worker)
    except KeyboardInterrupt:
        print(f"stopped; {_counts(cells)}; the same command continues")
        raise
    _print_failures(cells)
    states = Counter(cell.state for cell in cells)
    total = counted(len(cells), "cell")
    failed = states[CellState.FAILED]
    undone = len(cells) - states[CellState.DONE]
    if failed:
        raise FedauxError(f"failed: {failed} of {total}; --retry runs them again")
    if undone:
        raise FedauxError(f"unfinished: {undone} of {total}; the same command resumes them")
    print(f"{total} done; next: {shlex.join(command_line('report', options))}")


def _hand_over(cells: Sequence[Cell], name: str, options: argparse.Namespace) -> None:
    """Submit the cells that are open, and in no queue, to SLURM, or print their command lines."""
    idle = [cell for cell in cells if cell.state in (CellState.MISSING, CellState.UNFINISHED)]
    if options.launcher == "print":
        for cell in idle:
            cell.write_description()
            print(cell.shell_command)
        return
    executor = launchers.create_executor(options.root / "slurm", name, options.slurm)
    queued = launchers.queued_jobs()
    new = [cell for cell in idle if cell.read_description().get("job") not in queued]
    for cell, job in zip(new, launchers.submit(new, executor, _WORKER), strict=True):
        print(f"job {job}: {cell.name}", flush=True)
    jobs = counted(len(new), "job")
    if len(idle) > len(new):
        jobs += f", and {len(idle) - len(new)} in the queue already"
    print(f"{jobs}; `fedaux-pl sweep ... --status` shows how far they are")


def _table(cells: Sequence[Cell], axes: Sequence[str]) -> str:
    """Return a line for each cell: its coordinates, seed, state, rounds and key."""
    lines = []
    for cell in cells:
        labels = [cell.coordinates.get(axis, "-") for axis in axes]
        rounds = f"{len(cell.load_run().curve)}/{cell.rounds}"
        lines.append([*labels, str(cell.seed), str(cell.state), rounds, cell.key])
    frame = pd.DataFrame(lines, columns=[*axes, "seed", "state", "rounds", "key"])
    return to_text(TableItem("cells", "", frame), sys.maxsize)


def _counts(cells: Sequence[Cell]) -> str:
    """Return how many cells are in each state, such as ``8 cells: 3 done, 5 missing``."""
    states = Counter(str(cell.state) for cell in cells)
    order = ("done", "running", "unfinished", "failed", "missing")
    texts = [f"{states[state]} {state}" for state in order if states[state]]
    return f"{counted(states.total(), 'cell')}: {', '.join(texts)}"


def _print_running(cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.state is CellState.RUNNING:
            host = holder(cell.lock).get("host", "another process")
            rounds = f"round {cell.load_run().rounds} of {cell.rounds}"
            print(f"running: {cell.name}, {rounds} on {host}, {cell.log}")


def _print_failures(cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.state is CellState.FAILED:
            print(f"failed: {cell.name}: {cell.problem()}")


def _slots(jobs: int | None, cells: Sequence[Cell]) -> list[dict[str, str]]:
    """Return the environments of the jobs at a time: each on a GPU of its own, if it uses one."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if not torch.cuda.is_available() or not all(map(_uses_one_gpu, cells)):
        return [{}] * (jobs or 1)
    return [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} for i in range(jobs or len(gpus))]


def _uses_one_gpu(cell: Cell) -> bool:
    trainer = cell.config["trainer"]
    return trainer["devices"] in (1, "1") and trainer["accelerator"] != "cpu"


def command_line(verb: str, options: argparse.Namespace) -> list[str]:
    """Return the command of another verb for the same cells."""
    command = ["fedaux-pl", verb, options.file]
    if str(options.root) != "logs":
        command += ["--root", str(options.root)]
    for axis, labels in options.select.items():
        command += ["--select", f"{axis}={','.join(labels)}"]
    if options.seeds is not None:
        command += ["--seeds", ",".join(map(str, options.seeds))]
    return [*command, *options.extra]


def preload() -> None:
    """Start the server that imports the packages once and forks the processes of the cells.

    It does nothing else: a process that had used CUDA could not be forked.
    """
    # by this variable of torch, asking whether there is a GPU does not count as using CUDA
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # files in the current folder hide no package
    packages = ["lightly.loss", "matplotlib.pyplot", "torch.utils.tensorboard"]
    forkserver.set_forkserver_preload(["fedaux_pl.cli.verbs", *packages])
    with handled(signal.SIGINT, signal.SIG_IGN):  # which the server inherits
        forkserver.ensure_running()


def start_worker(cell: Cell, environment: Mapping[str, str]) -> BaseProcess:
    """Start the process of a cell, in the process group of the sweep."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=work, args=(cell.as_json(), dict(environment)))
    process.start()
    return process


def work(cell: str, environment: Mapping[str, str]) -> NoReturn:
    """Run a cell, given as JSON, in this process, which was started for it."""
    os.environ.update(environment)
    # by these, Lightning starts the other processes of a run on several devices
    sys.modules["__main__"].__spec__ = __spec__
    sys.argv[1:] = [cell]
    raise SystemExit(run_cell(Cell.from_json(cell), run_verb))


if __name__ == "__main__":
    work(sys.argv[1], {})
