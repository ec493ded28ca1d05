"""Turns the data that a data module takes into a source."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaux_pl.data.in_memory import InMemory
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.data.read_samples import is_dataset, is_labeled, is_pair, is_samples
from fedaux_pl.data.silos import Silos
from fedaux_pl.data.source import Source

_ARGUMENTS = (
    "train",
    "test",
    "validation",
    "clients",
    "tokenizer",
    "max_length",
    "test_clients",
    "background",
)

if TYPE_CHECKING:
    Data = Any  # in Python: all that ``as_source`` takes
else:
    Data = Source  # on the command line: a configuration can only name sources


def as_source(name: str, value: Data) -> Source:
    """Turn the data that a data module takes as its argument ``name`` into a source.

    Args:
        name: The argument, for messages.
        value: One of these:

            - a source;
            - data in a form of ``InMemory``, such as an array or a data set, or a pair
              (training, test) of such data;
            - a mapping of the arguments of ``InMemory``, such as a ``DatasetDict``;
            - for one data set per client, a list of pairs (training, test) or of sources, or a
              mapping of them by the names of the clients.

    Anything else raises a TypeError.
    """
    if isinstance(value, Source):
        return value
    members = _members(value)
    if members and all(map(_is_member, members.values())):
        return Silos({name: _to_member(member) for name, member in members.items()})
    if isinstance(value, Mapping):
        unknown = [str(key) for key in value if key not in _ARGUMENTS]
        is_dataset_dict = hasattr(value, "column_names")  # it can have other splits
        if "train" in value and (is_dataset_dict or not unknown):
            return InMemory(**{key: value[key] for key in _ARGUMENTS if key in value})
    elif is_samples(value):
        return InMemory(value)
    elif is_pair(value) and all(map(is_samples, value)):
        return InMemory(*value)
    got, remedy = _describe_refused(value)
    raise TypeError(
        f"{name}: got {got}; expected a Source, such as Digits(), a data set or arrays (see "
        f"InMemory): {remedy}"
    )


def _members(value: Any) -> dict[Any, Any]:
    """Return what may be the data of each client by its name; empty for a single data set."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list):
        return {f"client {index}": member for index, member in enumerate(value)}
    return {}


def _is_member(value: Any) -> bool:
    """Return whether a value is a source or a pair (training, test) of labeled data or None."""
    if isinstance(value, Source):
        return True
    return is_pair(value) and all(x is None or is_labeled(x) or is_dataset(x) for x in value)


def _to_member(value: Any) -> Source:
    return value if isinstance(value, Source) else InMemory(*value)


def _describe_refused(value: Any) -> tuple[str, str]:
    """Return what was passed, and what to do instead, for the message of a refusal."""
    if isinstance(value, Mapping):
        got = f"a mapping of {shorten(list(map(str, value)))}"
        if "train" not in value:
            return got, "name a part `train`"
        unknown = [str(key) for key in value if key not in _ARGUMENTS]
        return got, f"{unknown[0]!r} is none of its keys {', '.join(_ARGUMENTS)}"
    if isinstance(value, type) and issubclass(value, Source):
        return f"the class {value.__name__}", f"pass an object, {value.__name__}(...)"
    if isinstance(value, str | Path):
        return repr(value), "wrap files in NpzImages, ImageFolder or TextFiles"
    type_name = type(value).__name__
    if hasattr(value, "dataset"):
        return type_name, "pass its `dataset`"
    if hasattr(value, "__iter__"):
        return type_name, "pass a data set with a length, whose items have indices"
    return type_name, "wrap files in NpzImages, ImageFolder or TextFiles"
