"""YAML read as text: a number keeps the spelling that its author gave it."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line

Plain = str | list["Plain"] | dict[str, "Plain"]
"""A part of a file: text, a list or a mapping."""


def read_nodes(file: Path) -> dict[str, yaml.Node]:
    """Reads the entries of a YAML file, which must be a mapping.

    Raises:
        ConfigurationError: If it is not valid YAML, or not a mapping.
    """
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or first_line(error)
        raise ConfigurationError(f"{file} is not valid YAML: {problem}{place}") from error
    if node is None:
        raise ConfigurationError(f"{file} is empty: it must hold at least title and axes")
    return mapping(node, str(file))


def mapping(node: yaml.Node, name: str) -> dict[str, yaml.Node]:
    """The entries of a mapping, with keys as they are written.

    Args:
        node: The mapping.
        name: Its name in messages.

    Raises:
        ConfigurationError: If it is no mapping, or if a key occurs twice.
    """
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"{name} must be a mapping such as {{name: value}}, but is {text(node)}"
        )
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if text(key) in entries:
            raise ConfigurationError(f"{name} has {text(key)} twice: remove one of them")
        entries[text(key)] = value
    return entries


def sequence(node: yaml.Node, name: str) -> list[yaml.Node]:
    """The entries of a list.

    Raises:
        ConfigurationError: If it is no list.
    """
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigurationError(f"{name} must be a list such as [a, b], but is {text(node)}")
    entries: list[yaml.Node] = node.value
    return entries


def text(node: yaml.Node) -> str:
    """A value as it is written, in one line; ``null`` if nothing is written."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value) or ("" if node.style else "null")
    _set_flow_style(node)
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, width=float("inf"))).strip()


def plain(node: yaml.Node) -> Plain:
    """A value as nested dicts and lists of text."""
    if isinstance(node, yaml.MappingNode):
        return {key: plain(value) for key, value in mapping(node, text(node)).items()}
    if isinstance(node, yaml.SequenceNode):
        return [plain(value) for value in node.value]
    return text(node)


def _set_flow_style(node: yaml.Node) -> None:
    """Has a node and all below it written as {a: 1} and [1, 2]."""
    if isinstance(node, yaml.CollectionNode):
        node.flow_style = True
        for entry in node.value:
            for part in entry if isinstance(entry, tuple) else (entry,):
                _set_flow_style(part)


def check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises a ConfigurationError if a name is not one of the known ones.

    Args:
        where: The place of the names, for the message.
        given: The names.
        known: The known names.
    """
    known = list(known)
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"{where} must be one of {', '.join(known)}, but is {name}"
                f"{did_you_mean(name, known)}"
            )
