"""The command line, ``fedaux-pl VERB ...``."""

from fedaux_pl.cli.entry import main

__all__ = ["main"]
