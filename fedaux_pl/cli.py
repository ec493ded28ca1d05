"""The command line, `fedaux-pl VERB ...`.

This module imports nothing heavy, so that help and version answer at once; a verb loads what it
needs when it is called.
"""

import gc
import sys
from collections.abc import Sequence
from contextvars import copy_context
from importlib import import_module
from types import ModuleType

from fedaux_pl._version import __version__
from fedaux_pl.errors import FedauxError

VERBS = {
    "fit": "run a federation: prepare, then train round by round",
    "validate": "accuracy of a checkpoint on the test data",
    "test": "the same, under the name that Lightning gives it",
    "predict": "class probabilities for images (a folder, an npz file) or for a file of texts",
    "pretrain": "only the first step of fit, learning h_0, which fit then finds",
    "benchmark": "how fast the rounds of a configuration are on this machine, stage by stage",
}

_HELP = """usage: fedaux-pl VERB [--config FILE ...] [--OPTION VALUE ...]

Federated learning with unlabeled auxiliary data (FedAUX).

verbs:
{verbs}

options:
  -h, --help   this text
  --version    the version

The first run (no download, about a minute):
  fedaux-pl fit --config configs/quickstart.yaml
  fedaux-pl fit --config configs/text_quickstart.yaml

The options people set:
  --model.algorithm FedAUX             or FedAvg, FedProx, FedDF, FedBE
  --model.algorithm.pretrained true    start from features learned on the auxiliary data
  --model.algorithm.epsilon 0.1        privacy of FedAUX's scores
  --model.clients '{{resnet8: 20}}'      who trains what; several architectures may be mixed
  --model.participation 0.4            share of the clients in a round
  --data.private CIFAR10 --data.auxiliary STL10 --data.alpha 0.01
  --trainer.max_epochs 100             rounds
  --trainer.default_root_dir logs      all output goes below it
  --trainer.precision bf16-mixed
  --seed_everything 0
  --ckpt_path last                     go on with the newest run, or a path

More:
  fedaux-pl predict --ckpt_path last --images FOLDER --output predictions.csv
  fedaux-pl predict --ckpt_path last --texts FILE --column title,text
  fedaux-pl benchmark --config configs/quickstart.yaml --rounds 5 --output benchmark.json
  fedaux-pl fit --model.help                       all options of the federation
  fedaux-pl fit --model.algorithm.help FedAUX      those of one method
  fedaux-pl fit --data.auxiliary.help ImageFolder  those of one data source
  fedaux-pl fit --config F --print_config          what a configuration amounts to
  fedaux-pl fit --help                             everything (most of it is the Trainer's)
"""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
        args: The command line without the program's name; None for that of this process.

    Returns:
        The exit status: 0, or 1 if the run failed with a message on standard error. A command line
        that cannot be understood ends the process with status 2, as argparse does.
    """
    verb, *rest = (list(sys.argv[1:] if args is None else args)) or ["--help"]
    if verb in ("-h", "--help"):
        width = max(map(len, VERBS))
        print(_HELP.format(verbs="\n".join(f"  {v:{width}}  {t}" for v, t in VERBS.items())))
        return 0
    if verb == "--version":
        print(f"fedaux-pl {__version__}")
        return 0
    if verb not in VERBS:
        print(
            f"fedaux-pl: error: there is no verb {verb!r}; the verbs are: {', '.join(VERBS)} "
            "(fedaux-pl --help tells more)",
            file=sys.stderr,
        )
        return 2
    commands = _load_commands()
    try:
        # jsonargparse keeps its last parser, and with it the whole run, in a context variable
        copy_context().run(getattr(commands, verb), rest)
    except (FedauxError, FloatingPointError, OSError) as error:
        print(f"fedaux-pl {verb}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _load_commands() -> ModuleType:
    """What the verbs do, with all that it imports.

    That creates a million objects which stay: looking for garbage among them takes a second.
    """
    name = "fedaux_pl.commands"
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        commands = import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    return commands
