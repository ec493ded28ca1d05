"""The entry point of ``fedaux-pl VERB ...``.

It imports nothing heavy, so that --help and --version answer at once; a verb imports the rest.
"""

import argparse
import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from fedaux_pl._version import __version__
from fedaux_pl.errors import (
    EXPECTED,
    INTERRUPTED,
    TERMINATED,
    ConfigurationError,
    UsageError,
    did_you_mean,
)
from fedaux_pl.names import terminal_safe_lines

VERBS = {
    "fit": "run a federation: prepare it, then train round by round",
    "validate": "measure the accuracy of a checkpoint on the validation data, if there are any",
    "test": "measure the accuracy of a checkpoint on the test data",
    "predict": "write class probabilities for images (a folder, an npz file) or a file of texts",
    "pretrain": "only pre-train the models on the auxiliary data; fit then reuses them",
    "benchmark": "measure the speed of the rounds on this machine, stage by stage",
    "export": "write the models of a run as safetensors or ONNX, with a model card",
    "compare": "print a table of runs and draw their curves",
    "sweep": "run all cells of a sweep file, such as a table of the paper; resumes what is there",
    "report": "write tables, figures and a page of a sweep",
    "sites": "real sites: `sites init` prepares them, `status` lists them, `pin` prints a key",
    "site": "one real site: answers the server with what its private data and its limits allow",
}

_MODULES = {  # the other verbs are in verbs.py
    "predict": "model_verbs",
    "export": "model_verbs",
    "compare": "compare",
    "sweep": "sweep",
    "report": "report",
    "sites": "sites",
    "site": "site",
}

# Names that other programs give to these verbs.
_SYNONYMS = {"train": "fit", "run": "fit", "evaluate": "test", "eval": "test", "infer": "predict"}

_HELP = """usage: fedaux-pl VERB [--config FILE ...] [--OPTION VALUE ...]

Federated learning with unlabeled auxiliary data (FedAUX).

verbs:
{verbs}

options:
  -h, --help   show this text
  --version    show the version

First runs (no download, about a minute each):
  fedaux-pl fit --config quickstart
  fedaux-pl fit --config text_quickstart

Common options:
  --model.algorithm FedAUX             the method: FedAUX, FedDF, FedBE, FedAvg, FedProx, FedAvgM,
                                       FedAdam, FedBN, Scaffold or Centralized; with
                                       all private: FedClassMeans, FedAUXfdp or FedCOF.
                                       FedDF and others start from features learned on the
                                       auxiliary data with
                                       --model.algorithm.pretrained=true
  --model.algorithm.privacy.epsilon 0.1
                                       privacy of FedAUX's scores: smaller is more private
  --model.algorithm.privacy.secret true
                                       noise that nobody can repeat: every run costs epsilon anew
  --model.algorithm.scoring MeanScoring
                                       what a client releases: MeanScoring, StatisticsScoring
                                       or PaperScoring
  --model.algorithm.scoring.dimensions 64
                                       dimensions of the features that it is computed from
  --model.clients '{{resnet8: 20}}'      clients per architecture: one or several architectures
  --model.participation 0.4            share of the clients that train in a round
  --data.private CIFAR10               labeled data, split over the clients
  --data.auxiliary STL10               unlabeled public data
  --data.alpha 0.01                    Dirichlet split: with a small alpha, clients hold few classes
  --data.validation_fraction 0.1       hold out data of the clients, to choose the best round by
  --trainer.max_epochs 100             number of rounds
  --trainer.default_root_dir logs      folder of all output
  --trainer.precision bf16-mixed       mixed precision, for recent GPUs
  --seed_everything 0                  seed of the run
  --ckpt_path last                     resume the newest run; or a run's folder, or a checkpoint

More commands:
  fedaux-pl predict --ckpt_path last --images FOLDER --output predictions.csv
  fedaux-pl predict --ckpt_path last --texts FILE --column title,text
  fedaux-pl compare logs/runs/*
  fedaux-pl export last --output model
  fedaux-pl benchmark --config quickstart --rounds 5 --output benchmark.json
  fedaux-pl sweep paper/table1 --dry_run           the cells of a sweep file, and the time left
  fedaux-pl sweep paper/table1                     run or resume them; Ctrl-C and kills are safe
  fedaux-pl report paper/table1                    their tables and figures
  fedaux-pl sites init --sites a,b --server HOST   real sites, see docs/sites.md

More help:
  fedaux-pl fit --model.help                       options of the federation
  fedaux-pl fit --model.algorithm.help FedAUX      options of one method
  fedaux-pl fit --model.algorithm FedAUX --model.algorithm.scoring.help PaperScoring
                                                   options of a scoring
  fedaux-pl fit --data.auxiliary.help ImageFolder  options of one data source
  fedaux-pl fit --config FILE --print_config       all values of a configuration
  fedaux-pl fit --help                             all options, most of them the Trainer's
"""


class Parser(argparse.ArgumentParser):
    """A parser of verbs that need neither torch nor Lightning; wrong options are UsageErrors."""

    def __init__(self, verb: str, description: str, usage: str | None = None) -> None:
        prog = f"fedaux-pl {verb}"
        super().__init__(prog=prog, usage=usage, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError."""
        raise UsageError(message, self.prog)


def main(args: Sequence[str] | None = None) -> int:
    """Run one verb; this is the only place that prints errors.

    Return the exit status: 0, 1 if the run failed with a message on stderr, 2 for an unknown verb
    or wrong options, or ``INTERRUPTED`` after Ctrl-C. SystemExit is raised with status 0 after
    help, or ``TERMINATED``.
    """
    try:
        return _answer(args)
    except BrokenPipeError:  # of help, whose reader has read enough, as `head` in a pipe
        return 0
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _answer(args: Sequence[str] | None) -> int:
    verb, *rest = (list(sys.argv[1:] if args is None else args)) or ["--help"]
    if verb in ("-h", "--help"):
        width = max(map(len, VERBS))
        print(_HELP.format(verbs="\n".join(f"  {v:{width}}  {t}" for v, t in VERBS.items())))
        return 0
    if verb == "--version":
        print(f"fedaux-pl {__version__}")
        return 0
    if verb not in VERBS:
        meant = did_you_mean(_SYNONYMS.get(verb, verb), VERBS)
        problem = f"the verb: got {verb!r}{meant}; expected one of {', '.join(VERBS)}"
        print(f"fedaux-pl: error: {problem} (fedaux-pl --help describes them)", file=sys.stderr)
        return 2
    try:
        _check_encoding(rest)
        run_verb([verb, *rest])
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # of which Lightning makes status 1
            return INTERRUPTED
        raise
    except UsageError as error:
        more = f"fedaux-pl --help shows examples and the common options, {error.prog} --help all"
        message = terminal_safe_lines(error)
        print(f"{error.prog}: error: {message}\n({more})", file=sys.stderr)
        return 2
    except EXPECTED as error:
        print(f"fedaux-pl {verb}: error: {terminal_safe_lines(error)}", file=sys.stderr)
        return 1
    return 0


def _check_encoding(args: Sequence[str]) -> None:
    """Raise a ConfigurationError for paths that YAML, as of options and config.yaml, cannot hold.

    Names of files and folders below such paths need not be UTF-8.
    """
    for arg in args:
        if not _is_unicode(arg):
            raise ConfigurationError(
                f"{arg}: got a name that is not UTF-8; expected UTF-8 in options: rename the file "
                "or folder, or make a link to it (ln -s) and give the name of the link"
            )
    here = str(Path.cwd())
    if not _is_unicode(here):
        raise ConfigurationError(
            f"the name of the current folder, {here}, is not UTF-8: rename it, or start in another"
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_verb(args: Sequence[str]) -> None:
    """Run one verb; raise what it raises, and SystemExit with ``TERMINATED`` after SIGTERM."""
    verb, *rest = args
    name = _MODULES.get(verb, "verbs")
    verbs = import_packages(f"fedaux_pl.cli.{name}")
    with raised_by_sigterm(SystemExit(TERMINATED)):
        # jsonargparse holds its last parser, and so the whole run, in a context variable
        copy_context().run(getattr(verbs, verb), rest)


@contextmanager
def raised_by_sigterm(error: BaseException) -> Iterator[None]:
    """Within this context, SIGTERM raises the exception, once.

    Not in a round that Lightning's handler ends itself, for SLURM to requeue the job.
    """

    def end(*_: Any) -> None:
        handlers = getattr(signal.getsignal(signal.SIGTERM), "signal_handlers", ())  # Lightning's
        if "_sigterm_handler_fn" not in [getattr(one, "__name__", "") for one in handlers]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise error

    with handled(signal.SIGTERM, end):
        yield


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Set the handler of a signal; nothing outside of the main thread, which has the handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def import_packages(name: str) -> Any:
    """Import a module of the command line, and with it packages that take seconds.

    Ctrl-C ends the process at once meanwhile: some imports ignore its exception.
    """
    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handled(signal.SIGINT, signal.SIG_DFL) if is_raised else nullcontext():
        return _import(name)


def _import(name: str) -> Any:
    """Import a module without garbage collection, which would take a second: objects stay."""
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        module = import_module(name)
        gc.freeze()
        # PyTorch imports Triton, which reports its frozen objects as leaked when the process ends
        atexit.register(gc.unfreeze)
    finally:
        gc.enable()
    return module
