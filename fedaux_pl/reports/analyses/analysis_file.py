"""The file of an analysis: which one, its options, and the federation that it needs."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.reports.items import Item
from fedaux_pl.sweeps.sweep_file import base_arguments
from fedaux_pl.sweeps.yaml_nodes import check_names, mapping, plain, read_nodes, text

ANALYSES = (
    "gaussian_clients",
    "imagenet_subsets",
    "iris_ensemble",
    "method_costs",
    "similar_images",
    "split_bubbles",
)
"""The names of all analyses: each is a function in the module of the same name."""

_KEYS = ("title", "note", "analysis", "options", "base")
_MEANINGS = {
    int: "an integer",
    int | None: "an integer",
    float: "a number",
    list[int]: "a list of integers",
    list[float]: "a list of numbers",
    Path | None: "a folder",
}  # of the types of options
_BASE = "base"  # the argument of an analysis for the arguments of ``fit``


def run(file: Path, root: Path, extra: Sequence[str] = ()) -> list[Item]:
    """Runs the analysis of a file.

    Args:
        file: The file, with ``analysis`` and perhaps ``options`` and ``base``.
        root: The folder of all output, whose ``cache`` holds the h_0 of earlier runs.
        extra: Arguments of ``fit`` after those of the base.

    Returns:
        The tables and figures of its report.

    Raises:
        ConfigurationError: If the file, its options or its base cannot be used.
    """
    parts = read_nodes(file)
    try:
        function = find_analysis(parts)
        options = read_options(function, parts)
        if (base := base_command(function, parts, root, extra)) is not None:
            options[_BASE] = base
        return list(function(**options))
    except (ConfigurationError, ValueError) as error:
        raise ConfigurationError(f"{file}: {error}") from error


def find_analysis(parts: Mapping[str, yaml.Node]) -> Callable[..., list[Item]]:
    """The function that a file names.

    Raises:
        ConfigurationError: If the file has other entries, or names no analysis.
    """
    check_names("an entry", parts, _KEYS)
    if missing := [key for key in ("title", "analysis") if key not in parts]:
        raise ConfigurationError(f"{missing[0]} is missing: add it")
    name = text(parts["analysis"])
    check_names("analysis", [name], ANALYSES)
    function: Callable[..., list[Item]] = getattr(
        import_module(f"fedaux_pl.reports.analyses.{name}"), name
    )
    return function


def read_options(
    function: Callable[..., list[Item]], parts: Mapping[str, yaml.Node]
) -> dict[str, Any]:
    """The options of a file, converted to the types of the function's arguments.

    Raises:
        ConfigurationError: If an option is unknown, missing or of another type.
    """
    given = mapping(parts["options"], "options") if "options" in parts else {}
    arguments = signature(function).parameters
    known = [name for name in arguments if name != _BASE]
    check_names("options", given, known)
    required = [name for name in known if arguments[name].default is Parameter.empty]
    if missing := [name for name in required if name not in given]:
        raise ConfigurationError(f"options: {missing[0]} is missing: add it")
    options = {}
    for name, node in given.items():
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument(f"--{name}", type=arguments[name].annotation)
        try:
            options[name] = parser.parse_object({name: plain(node)})[name]
        except ArgumentError as error:
            meaning = _MEANINGS[arguments[name].annotation]
            raise ConfigurationError(
                f"options: {name} must be {meaning}, but is {text(node)}"
            ) from error
    return options


def base_command(
    function: Callable[..., list[Item]],
    parts: Mapping[str, yaml.Node],
    root: Path,
    extra: Sequence[str],
) -> list[str] | None:
    """The command line of the federation of an analysis; None for an analysis without one.

    Args:
        function: The analysis.
        parts: The entries of the file.
        root: The folder of all output.
        extra: Arguments of ``fit`` after those of the base.

    Raises:
        ConfigurationError: If there is a base, or ``extra``, that the analysis does not use, or if
            the base that it needs is missing.
    """
    base, argument = base_arguments(parts), signature(function).parameters.get(_BASE)
    if argument is not None and base is not None:
        return [*base, "--trainer.default_root_dir", str(root), *extra]
    if base is not None:
        raise ConfigurationError(f"{function.__name__} needs no federation: remove base")
    if argument is not None and argument.default is Parameter.empty:
        raise ConfigurationError(
            f"base is missing: {function.__name__} needs a federation, such as base: quickstart"
        )
    if extra:
        raise ConfigurationError(
            f"this analysis runs no federation, but got {' '.join(extra)}: leave it out, or "
            "change the options in the file"
        )
    return None
