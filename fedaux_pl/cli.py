"""The command line, `fedaux-pl VERB ...`: one verb, one parser.

This module imports nothing heavy, so that help and version answer at once; a verb loads what it
needs when it is called.
"""

import sys
from collections.abc import Sequence

from fedaux_pl._version import __version__
from fedaux_pl.errors import FedauxError

_VERBS = {"pretrain": "learn features h_0 from unlabeled auxiliary data, by SimCLR"}

_HELP = """usage: fedaux-pl VERB [--config FILE] [--OPTION VALUE ...]

Federated learning with unlabeled auxiliary data (FedAUX).

verbs:
{verbs}

options:
  -h, --help   this text
  --version    the version

Of every verb:
  fedaux-pl VERB --help                  all its options (most of them are the Trainer's)
  fedaux-pl VERB --data.auxiliary.help Digits
                                         the options of one class, here of the data source Digits
  fedaux-pl VERB --config F --print_config
                                         what a configuration amounts to

A run without any download:
  fedaux-pl pretrain --config configs/pretrain_digits.yaml
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
        width = max(map(len, _VERBS))
        print(_HELP.format(verbs="\n".join(f"  {v:{width}}  {t}" for v, t in _VERBS.items())))
        return 0
    if verb == "--version":
        print(f"fedaux-pl {__version__}")
        return 0
    if verb not in _VERBS:
        print(
            f"fedaux-pl: error: there is no verb {verb!r}; the verbs are: {', '.join(_VERBS)} "
            "(fedaux-pl --help tells more)",
            file=sys.stderr,
        )
        return 2
    from fedaux_pl.pretrain import pretrain

    try:
        pretrain(rest)
    except FedauxError as error:
        print(f"fedaux-pl {verb}: error: {error}", file=sys.stderr)
        return 1
    return 0
