"""The checkpoint of a run, for verbs that read its models: ``export`` and ``predict``."""

import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fedaux_pl.class_paths import import_named
from fedaux_pl.engine.checkpoints import find_tested, load_checkpoint
from fedaux_pl.errors import ConfigurationError


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
