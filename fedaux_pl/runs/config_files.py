"""The configuration files of a command line: the package's by name, and those of earlier runs."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_only

from fedaux_pl.engine.checkpoints import find_checkpoint, find_last
from fedaux_pl.errors import ConfigurationError, did_you_mean

FOLDER = Path(__file__).parents[1] / "configs"
_SUFFIXES = (".yaml", ".yml", ".json")
_SWEEPS = "paper"  # the folder of sweep files, which fit does not take
_OF_SWEEPS = re.compile(r"^(axes|grids):", re.MULTILINE)


def config_names() -> list[str]:
    """Return the package's configurations, such as ``quickstart`` and ``methods/feddf``."""
    paths = (path for path in FOLDER.rglob("*.yaml") if path.parent.name != _SWEEPS)
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in paths)


def complete_configs(args: Sequence[str]) -> list[str]:
    """Replace names of the package's configurations by files, and add that of a resumed run.

    A command line with a checkpoint and without a configuration takes the config.yaml of the run
    that wrote the checkpoint.
    """
    complete = list(args)
    for position, value in _values(args, "--config"):
        prefix = "--config=" if args[position].startswith("--config=") else ""
        complete[position] = prefix + (found := _find_config(value))
        text = Path(found).read_text(errors="replace") if Path(found).is_file() else ""
        if of_sweep := _OF_SWEEPS.search(text):
            raise ConfigurationError(
                f"config must be a configuration of one run, but {found} is a file of fedaux-pl "
                f"sweep (it has {of_sweep[1]}): run fedaux-pl sweep {found}"
            )
    saved = None if any(_values(args, "--config")) else _config_of_run(args)
    if saved is None:
        return complete
    rank_zero_only(print)(f"Settings: {saved}")
    return ["--config", str(saved), *complete]


def _find_config(value: str) -> str:
    """Return the path of a configuration; a value that is no name of one is not changed."""
    name = value.removeprefix("configs/")
    if Path(value).is_file() or any(character in value for character in "{\n"):
        return value
    packaged = FOLDER / (name if name.endswith(_SUFFIXES) else f"{name}.yaml")
    if packaged.is_file():
        return str(packaged)
    if value.endswith(_SUFFIXES):
        return value  # the parser says that there is no such file
    names = config_names()
    bases = ", ".join(name for name in names if "/" not in name)
    raise ConfigurationError(
        f"config must be a YAML file, one of {bases}, or a layer such as methods/feddf, but is "
        f"{value}{did_you_mean(name, names)}"
    )


def _config_of_run(args: Sequence[str]) -> Path | None:
    """Return the config.yaml of the run whose checkpoint is given, if there is one."""
    *_, given = None, *(value for _, value in _values(args, "--ckpt_path"))  # the last one counts
    *_, folder = "logs", *(value for _, value in _values(args, "--trainer.default_root_dir"))
    root = Path(folder)
    has_model = any(argument.startswith("--model") for argument in args)
    if given == "last" and has_model and find_last(root) is None:
        return None  # fit begins a new run
    checkpoint = None if given == "null" else find_checkpoint(given, root)
    if checkpoint is None:
        return None
    saved = checkpoint.absolute().parent.parent / "config.yaml"  # RUN/checkpoints/last.ckpt
    return saved if saved.is_file() else None


def _values(args: Sequence[str], option: str) -> Iterator[tuple[int, str]]:
    """Yield the positions in ``args`` and the values of an option."""
    for position, argument in enumerate(args):
        if argument.startswith(f"{option}="):
            yield position, argument.partition("=")[2]
        elif argument == option and position + 1 < len(args):
            yield position + 1, args[position + 1]
