"""Every cell of the sweeps has the scoring that version 1.0 gave it."""

import functools
import json
from pathlib import Path

import pytest
import yaml
from jsonargparse import ActionConfigFile

from fedaux_pl.algorithms import Algorithm, FedAUX
from fedaux_pl.runs.config_files import FOLDER
from fedaux_pl.runs.parser import FederationParser
from fedaux_pl.sweeps.sweep_file import read_sweep

FOLDERS = ("paper", "silos")
SWEEPS = sorted(f"{name}/{path.stem}" for name in FOLDERS for path in FOLDER.glob(f"{name}/*.yaml"))
# Written by the last commit before the recipes: the distinct settings as texts, and for each cell
# of the first seed the position of its text, or null if its method has no scoring.
STORED = Path(__file__).with_suffix(".json")


def settings_of_cells(name, folder):
    """The method of each cell of the first seed with its scoring settings; None without scoring."""
    cells = read_sweep(name).cells
    known = {}
    for cell in cells:
        if cell.seed == cells[0].seed:
            args = arguments_of_the_method(cell, folder)
            if args not in known:
                known[args] = settings_text(create(args))
            yield known[args]


def arguments_of_the_method(cell, folder):
    """The arguments of a cell that can change its method, which configurations have alone."""
    kept = []
    for option, value in zip(cell.args[::2], cell.args[1::2], strict=True):
        if option.startswith("--model.algorithm"):
            kept += [option, value]
        elif option == "--config" and (method := method_in(value)) is not None:
            file = folder / f"{value.replace('/', '-')}.yaml"
            file.write_text(yaml.safe_dump({"model": {"algorithm": method}}))
            kept += [option, str(file)]
    return tuple(kept)


@functools.cache
def method_in(config):
    """What a configuration says about the method."""
    content = yaml.safe_load((FOLDER / f"{config}.yaml").read_text())
    return content.get("model", {}).get("algorithm")


def create(args):
    """The method that the command line chooses."""
    parser = FederationParser()
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("--model.algorithm", type=Algorithm)
    return parser.instantiate_classes(parser.parse_args([*args])).model.algorithm


def settings_text(method):
    """The settings of a method's scoring, in the order of version 1.0; None without scoring."""
    if method.release is None:
        return None
    settings = method.release.scoring.settings()
    secret = settings.pop("secret_noise")
    # an option in version 1.0, without a meaning where the server does not score with the vectors
    settings["shrink"] = type(method) is FedAUX and method.release.scoring.calibration.shrinks
    return f"{type(method).__name__} {settings | {'secret_noise': secret}}"


@pytest.mark.parametrize("name", SWEEPS)
def test_a_cell_has_the_scoring_of_version_1(name, tmp_path):
    stored = json.loads(STORED.read_text())
    expected = [None if i is None else stored["settings"][i] for i in stored["cells"][name]]
    assert [*settings_of_cells(name, tmp_path)] == expected
