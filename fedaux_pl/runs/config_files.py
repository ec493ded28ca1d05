"""The configuration files of a command line: the package's by name, and those of earlier runs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedaux_pl.engine.checkpoints import find_checkpoint, find_last, load_checkpoint
from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.lightning import OTHER_PACKAGE, PACKAGE, VARIABLE, rank_zero_only
from fedaux_pl.runs.option_names import nested_settings
from fedaux_pl.runs.packaged_configs import FOLDER, config_names
from fedaux_pl.runs.refuse_removed import explain, refuse_removed
from fedaux_pl.runs.removed import REMOVED

BEGAN_IN = "# relative paths are below "
"""How the first line of a run's config.yaml begins; the folder in which the run began follows."""
_SUFFIXES = (".yaml", ".yml", ".json")
_PATH = re.compile(r"(\w+_)?(root|path)|cache_dir|tokenizer|source")  # options that hold one


def complete_configs(args: Sequence[str]) -> list[str]:
    """Replace names of the package's configurations by files, and add that of a resumed run.

    A command line with a checkpoint and without a configuration takes the config.yaml of the run
    that wrote the checkpoint.
    """
    complete = list(args)
    settings: list[Mapping[str, Any]] = []
    for position, value in _values(args, "--config"):
        prefix = "--config=" if args[position].startswith("--config=") else ""
        path = _find_config(value)
        complete[position] = prefix + path
        content = _read(Path(path)) if Path(path).is_file() else {}
        settings.append(content)
        if "axes" in content or "grids" in content:
            raise ConfigurationError(
                f"config: got {path}, a file of fedaux-pl sweep (it has axes or grids); expected "
                f"a configuration of one run: run fedaux-pl sweep {path}"
            )
    refuse_removed(*settings, dict(_settings(args)))
    saved = None if any(_values(args, "--config")) else _config_of_run(args)
    if saved is None:
        return complete
    first = saved.read_text(encoding="utf-8").partition("\n")[0]
    began = Path(first.removeprefix(BEGAN_IN)) if first.startswith(BEGAN_IN) else Path.cwd()
    is_elsewhere = began != Path.cwd()
    note = f" (of a run that began in {began})" if is_elsewhere else ""
    rank_zero_only(print)(f"Settings: {saved}{note}")
    moved = _paths_of_run(saved, began) if is_elsewhere else []
    return ["--config", str(saved), *moved, *complete]


def keys_of_config(value: str) -> list[str]:
    """Return the options that a configuration sets, given as for ``--config``.

    Those are its keys, and below a mapping the keys of the mapping, joined by a dot.
    """
    path = Path(_find_config(value))
    content = _read(path) if path.is_file() else yaml.safe_load(value)
    keys: list[str] = []
    for key, below in content.items():
        keys += [f"{key}.{name}" for name in below] if isinstance(below, Mapping) else [key]
    return keys


def _read(path: Path) -> dict[str, Any]:
    """Read a configuration file; raise a ConfigurationError that names it."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        problem = f"config: {path} is not valid YAML: it is not a text file"
        raise ConfigurationError(problem) from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split()).replace('in "<unicode string>",', "at")
        raise ConfigurationError(f"config: {path} is not valid YAML: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"config: {path}: got {str(content)[:40]!r}; expected options such as `model: "
            "{participation: 0.4}`"
        )
    if re.search(rf"class_path: {re.escape(OTHER_PACKAGE)}\.", text):
        raise ConfigurationError(
            f"config: {path} names classes of {OTHER_PACKAGE}, and this process uses {PACKAGE}: "
            f"set the environment variable {VARIABLE}={OTHER_PACKAGE}"
        )
    return content


def _paths_of_run(saved: Path, began: Path) -> list[str]:
    """Return options for a run that is read from another folder than the one it began in.

    They are its root, and the relative paths in its configuration that lead to something there.
    """
    run = saved.parent
    options = [f"--trainer.default_root_dir={run.parents[1]}"] if run.parent.name == "runs" else []
    settings = _read(saved)
    for root in ("data", "model"):
        for key, value in nested_settings(settings.get(root) or {}, root):
            is_path = isinstance(value, str) and _PATH.fullmatch(key.rpartition(".")[2])
            if is_path and not Path(value).is_absolute() and (began / value).exists():
                options.append(f"--{key}={began / value}")
    return options


def _find_config(value: str) -> str:
    """Return the path of a configuration; a value that is no name of one is not changed."""
    name = value.removeprefix("configs/")
    if Path(value).is_file() or any(character in value for character in "{\n"):
        return value
    packaged = FOLDER / (name if name.endswith(_SUFFIXES) else f"{name}.yaml")
    if packaged.is_file():
        return str(packaged)
    removed = name.removesuffix(".yaml")
    if removed in REMOVED:
        raise ConfigurationError(f"config: {explain(removed)}")
    if value.endswith(_SUFFIXES):
        return value  # the parser says that there is no such file
    names = config_names()
    bases = ", ".join(name for name in names if "/" not in name)
    raise ConfigurationError(
        f"config: got {value}{did_you_mean(name, names)}; expected a YAML file, one of {bases}, or "
        "a layer such as methods/feddf"
    )


def _config_of_run(args: Sequence[str]) -> Path | None:
    """Return the config.yaml of the run whose checkpoint is given, if there is one."""
    ckpt_path = _last_value(args, "--ckpt_path", "null")
    root = Path(_last_value(args, "--trainer.default_root_dir", "logs"))
    has_model = any(argument.startswith("--model") for argument in args)
    if ckpt_path == "last" and has_model and find_last(root) is None:
        return None  # fit begins a new run
    checkpoint = None if ckpt_path == "null" else find_checkpoint(ckpt_path, root)
    if checkpoint is None:
        return None
    saved = checkpoint.absolute().parent.parent / "config.yaml"  # RUN/checkpoints/last.ckpt
    if not saved.is_file():
        load_checkpoint(checkpoint)  # raises if it is not the checkpoint of a federation
        return None
    return saved


def _settings(args: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command line without their dashes, and their values."""
    for position, argument in enumerate(args):
        option, equals, value = argument.removeprefix("--").partition("=")
        if argument.startswith(("--model.", "--data.")):
            value = value if equals else "".join(args[position + 1 : position + 2])
            is_mapping = value.startswith("{") and value.endswith("}")
            yield option, _parsed(value) if is_mapping else value


def _parsed(text: str) -> Any:
    """Return what a value in braces means; the text itself if it is not valid YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # the parser says what is wrong with it


def _last_value(args: Sequence[str], option: str, default: str) -> str:
    """Return the value of an option that counts: the last one."""
    return [default, *(value for _, value in _values(args, option))][-1]


def _values(args: Sequence[str], option: str) -> Iterator[tuple[int, str]]:
    """Yield the positions in ``args`` and the values of an option."""
    for position, argument in enumerate(args):
        if argument.startswith(f"{option}="):
            yield position, argument.partition("=")[2]
        elif argument == option and position + 1 < len(args):
            yield position + 1, args[position + 1]
