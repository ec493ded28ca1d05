"""Class labels and clients as users give them, names or integers, and as indices."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.input_checks import shorten
from fedaux_pl.errors import DataError

Labels = list[int] | list[str]


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted by value if all are integers, else alphabetically."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))  # "1" and "01" differ
    except ValueError:
        return tuple(sorted(names))


def class_indices(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Turn class names into indices.

    Labels can also be indices as strings, unless one of the names is such an index itself.
    """
    indices = {name: index for index, name in enumerate(classes)}
    numbers = {str(index): index for index in range(len(classes))}
    if not indices.keys() & numbers:  # whatever the labels: all files must be read alike
        indices |= numbers
    if unknown := sorted(set(labels) - indices.keys()):
        raise DataError(
            f"labels must be the classes {shorten(classes)} or, if none of them is an index, "
            f"indices from 0, but the file has {shorten([repr(label) for label in unknown], 5)}: "
            "set data.classes, or correct the file"
        )
    return torch.tensor([indices[label] for label in labels])


def to_list(values: Any, what: str) -> Labels:
    """Return the integers or names of an array, a column of a table or a list; one a sample."""
    array = _to_array(values)
    if array.ndim != 1 or not _is_named(array):
        raise DataError(
            f"{what} must be integers or class names, one for each sample, but are "
            f"{array.dtype} of shape {array.shape}"
        )
    labels: Labels = array.tolist()
    return labels


def distinct_classes(labels: Labels, what: str, remedy: str) -> tuple[str, ...]:
    """Return the classes that training labels name; integers must be 0, 1, 2 ... without gaps.

    For the message, ``what`` names the labels, and ``remedy`` begins with how to name the classes.
    """
    found: set[Any] = set(labels)
    if not all(isinstance(label, int) for label in found):
        return class_names(map(str, found))
    numbers = sorted(found)
    if numbers != list(range(len(numbers))):
        raise DataError(
            f"labels must be 0 ... {len(numbers) - 1} for {len(numbers)} classes, but {what} are "
            f"{shorten([str(label) for label in numbers])}: {remedy} the names of all classes, "
            "which the labels index from 0"
        )
    return tuple(map(str, numbers))


def number_labels(labels: Labels, classes: Sequence[str], own: Sequence[str] = ()) -> Tensor:
    """Turn labels into indices of ``classes``; integers index the data's own names, if any."""
    index: dict[Any, int] = {name: i for i, name in enumerate(classes)}
    index |= {i: index[name] for i, name in enumerate(own or classes) if name in index}
    if unknown := [label for label in labels if label not in index]:
        raise DataError(
            f"labels must be 0 ... {len(classes) - 1} for the classes ({shorten(classes)}) or "
            f"their names, but {unknown[0]!r} is among them: correct it, or set classes of the "
            "data module to the names of all classes"
        )
    return torch.tensor([index[label] for label in labels], dtype=torch.int64)


def name_clients(values: Any, count: int, what: str) -> Mapping[str, Any]:
    """Number the clients of ``count`` samples; ``what`` names the values in messages.

    Returns:
        The arguments ``clients`` and ``client_names`` of ``fedaux_pl.data.Examples``, of
        which names are sorted as by ``class_names``; none if ``values`` is None.
    """
    if values is None:
        return {}
    array = _to_array(values)
    if array.shape != (count,):
        raise DataError(
            f"{what} must have one client for each of the {count} samples, but has the shape "
            f"{array.shape}"
        )
    if not _is_named(array):
        raise DataError(
            f"{what} must hold client names or integers, but is {array.dtype}: convert it"
        )
    names = [str(value).strip() for value in array.tolist()]
    if "" in names:
        raise DataError(
            f"{what} is empty for sample {names.index('')}: name the client of every sample"
        )
    distinct = class_names(names)
    return {"clients": class_indices(names, distinct), "client_names": distinct}


def _to_array(values: Any) -> NDArray[Any]:
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    # a table's column of names has the dtype object
    is_text = array.dtype == object and all(isinstance(value, str) for value in array.flat)
    return array.astype(str) if is_text else array


def _is_named(array: NDArray[Any]) -> bool:
    return np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"
