"""The options that ``sweep`` and ``report`` share; all others are those of ``fit``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedaux_pl.errors import did_you_mean

_OPTIONS_OF_FIT = (
    *("config", "model", "data", "trainer", "seed_everything"),
    *("ckpt_path", "print_config", "help"),
)


class SweepParser(argparse.ArgumentParser):
    """A parser of ``VERB FILE [own options] [options of fit]``.

    Args:
        verb: The verb.
        description: What it does.
    """

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(
            prog=f"fedaux-pl {verb}",
            usage=f"fedaux-pl {verb} FILE [options below] [options of fit, for all cells]",
            description=description,
            allow_abbrev=False,
        )
        self.add_argument(
            "--root",
            type=Path,
            default=Path("logs"),
            help="the folder of all output (default: logs)",
        )
        self.add_argument(
            "--select",
            action="append",
            default=[],
            metavar="AXIS=LABEL[,LABEL...]",
            help="only the cells with these labels; may be repeated",
        )
        self.add_argument("--seeds", metavar="0,1,2", help="seeds in place of those in the file")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Parses a command line; ``file`` and the options of fit, ``extra``, are added to it."""
        file, *rest = list(args) or [""]
        if file in ("-h", "--help"):
            self.print_help()
            self.exit()
        if not file or file.startswith("-"):
            self.error("give the sweep file first, such as paper/table1")
        options, extra = self.parse_known_args(rest)
        options.file, options.extra = file, extra
        self._check_options(extra)
        options.seeds = self._seeds(options.seeds)
        select: dict[str, list[str]] = {}
        for text in options.select:
            axis, found, labels = text.partition("=")
            if not found or not labels:
                self.error(f"--select must be AXIS=LABEL[,LABEL...], but is {text}")
            select.setdefault(axis, []).extend(labels.split(","))
        options.select = select
        return options

    def _check_options(self, extra: Sequence[str]) -> None:
        """Refuses options that neither the verb nor ``fit`` has, such as a misspelled --dry_run."""
        for text in extra:
            name = text.partition("=")[0]
            is_option = name.startswith("--") and "." not in name
            if is_option and name.removeprefix("--") not in _OPTIONS_OF_FIT:
                own = [option for option in self._option_string_actions if option[:2] == "--"]
                self.error(f"there is no option {name}{did_you_mean(name, own)}")

    def _seeds(self, text: str | None) -> list[int] | None:
        if text is None:
            return None
        seeds = text.split(",")
        if not all(seed.isdecimal() for seed in seeds):
            self.error(f"--seeds must be integers from 0 on such as 0,1,2, but is {text}")
        return [int(seed) for seed in seeds]

    def error(self, message: str) -> NoReturn:
        """Prints the error and ends the process with status 2."""
        print(f"{self.prog}: error: {message} ({self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)
