"""The parser of options, which imports neither torch nor Lightning."""

import re
from argparse import SUPPRESS
from collections.abc import Mapping
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from fedaux_pl.errors import UsageError
from fedaux_pl.runs.messages import clarify
from fedaux_pl.runs.option_names import as_typed

TESTED = (
    "The folder of a run, or 'last' for the newest: its best.ckpt if validation data chose one, "
    "else its last.ckpt; or a checkpoint."
)
"""Which checkpoint verbs take that measure a run or read its models."""


class OptionParser(ArgumentParser):
    """Raises errors in one line without the usage, and adds --model.help and --data.help."""

    roots: Mapping[str, type] = {}  # the classes behind the first parts of options
    meanings: Mapping[str, str] = {}  # the allowed values of options whose type does not say them

    def __init__(self, *args: Any, **options: Any) -> None:
        # A prefix of an option is a misspelled option, as it is in a configuration file.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_args(self, *args: Any, **options: Any) -> Any:
        """Parse the command line, or print the help of the model's or the data's options."""
        for root in ("model", "data"):
            if args and args[0] is not None and f"--{root}.help" in args[0]:
                sections = self.format_help().split("\n\n")
                below_root = re.compile(rf"^  --{root}[ .]", re.MULTILINE)
                print("\n\n".join(filter(below_root.search, sections)))
                self.exit()
        if args and args[0] and not self.exit_on_error:  # jsonargparse writes a nested null as None
            args = ([re.sub("=None$", "=null", argument) for argument in args[0]], *args[1:])
        try:
            return super().parse_args(*args, **options)
        except UnicodeDecodeError as error:
            self.error("Problems parsing config: it is not a text file", error)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a UsageError."""
        if not self.exit_on_error:  # a parser inside jsonargparse, which catches the error
            super().error(message, ex)
        options = self.option_names()
        problem = clarify(message, self.prog, self.roots, self.meanings, options)
        if not problem.startswith("there is no option"):  # whose names are as they were given
            problem = as_typed(problem, options)
        raise UsageError(problem, self.prog) from ex

    def option_names(self) -> list[str]:
        """Return the names of all options, without dashes."""
        return [
            name.removeprefix("--")
            for name, action in self._option_string_actions.items()
            if name.startswith("--") and action.help != SUPPRESS  # hidden: set by another option
        ]
