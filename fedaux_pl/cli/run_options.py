"""The options of verbs that read the models of a run, ``export`` and ``predict``."""

import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fedaux_pl.class_paths import import_named
from fedaux_pl.engine.checkpoints import find_tested, load_checkpoint
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.runs.parser import TESTED, FederationParser


def add_run_options(parser: FederationParser, name: str) -> None:
    """Add the run as the argument ``name``, the folder to search and the modules to import."""
    add = parser.add_argument
    is_required = {"required": True} if name.startswith("--") else {}  # others always are
    add(name, type=str, help=TESTED, **is_required)
    add(
        "--root",
        "--trainer.default_root_dir",  # as in fit
        type=Path,
        default=Path("logs"),
        help="The folder to search with 'last'.",
    )
    about = "The module of your own network, which is not imported otherwise; several with commas."
    add("--import", type=str, default="", metavar="MODULE", help=about)


def load_run(run: str, options: Namespace) -> tuple[Path, dict[str, Any]]:
    """Import the given modules; return the path of the run's checkpoint and its content."""
    here = str(Path.cwd())
    for name in filter(None, options["import"].split(",")):
        if here not in sys.path:  # as in fit; last, so that it hides no package
            sys.path.append(here)
        try:
            import_named(name)
        except ImportError as error:
            raise ConfigurationError(f"--import {name}: {error}") from error
    path = find_tested(run, options.root)
    assert path is not None  # noqa: S101 - None only for None
    return path, load_checkpoint(path)
