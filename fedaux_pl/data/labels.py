"""Numbers for class labels and clients, which users give as names or integers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data.input_checks import shorten
from fedaux_pl.errors import DataError

Labels = list[int] | list[str]


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted by value if all are integers, or else alphabetically."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))  # "1" and "01" differ
    except ValueError:
        return tuple(sorted(names))


def class_indices(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Turn labels that are text into positions in ``classes``.

    A label is the name of a class. It can also be a position as text, such as "0", unless one of
    the classes is itself called like a position.
    """
    index = {name: i for i, name in enumerate(classes)}
    numbers = {str(i): i for i in range(len(classes))}
    # The choice does not depend on the labels, because all files must be read alike.
    if not index.keys() & numbers:
        index |= numbers
    expected = f"the classes {shorten(classes)} or, if none of them is an index, indices from 0"
    return _look_up(labels, index, expected)


def number_labels(labels: Labels, classes: Sequence[str], names: Sequence[str] = ()) -> Tensor:
    """Turn labels into positions in ``classes``.

    Args:
        labels: Names of classes, or integers.
        classes: The names of all classes.
        names: The names in the data that integers are positions in; empty if they are positions in
            ``classes``.
    """
    index: dict[Any, int] = {name: i for i, name in enumerate(classes)}
    index |= {i: index[name] for i, name in enumerate(names or classes) if name in index}
    expected = f"0 ... {len(classes) - 1} for the classes ({shorten(classes)}) or their names"
    return _look_up(labels, index, expected)


def _look_up(labels: Sequence[Any], index: Mapping[Any, int], expected: str) -> Tensor:
    """Return the number of each label; an unknown label raises a DataError."""
    try:
        return torch.tensor([index[label] for label in labels], dtype=torch.int64)
    except KeyError as error:
        raise DataError(
            f"labels: got {error}; expected {expected}: correct it, or set classes of the data "
            "module to the names of all classes"
        ) from error


def distinct_classes(labels: Labels, what: str = "labels") -> tuple[str, ...]:
    """Return the classes that occur in labels; integers must be 0, 1, 2 ... without gaps."""
    distinct: set[Any] = set(labels)
    if not all(isinstance(label, int) for label in distinct):
        return class_names(map(str, distinct))
    numbers = sorted(distinct)
    if numbers != list(range(len(numbers))):
        raise DataError(
            f"{what}: got {shorten([str(label) for label in numbers])}; expected 0 ... "
            f"{len(numbers) - 1} for {len(numbers)} classes: use class names as labels, or set "
            "data.classes (in .npz files an array `classes`) to the names that they index from 0"
        )
    return tuple(map(str, numbers))


def to_list(values: Any, what: str) -> Labels:
    """Return the integers or names, one per sample, of an array, a table's column or a list."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    # a table's column of names has the dtype object
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"):
        raise DataError(
            f"{what}: got {array.dtype} of shape {array.shape}; expected integers or names, one "
            "for each sample"
        )
    labels: Labels = array.tolist()
    return labels


def name_clients(values: Any, count: int, what: str) -> Mapping[str, Any]:
    """Number the clients that hold samples, in the order of ``class_names``.

    Args:
        values: The name or integer of the client of each sample; None if no clients are named.
        count: The number of samples.
        what: The name of the values in messages.

    Returns:
        The arguments ``clients`` and ``client_names`` of ``fedaux_pl.data.Examples``; empty if
        ``values`` is None.
    """
    if values is None:
        return {}
    names = [str(value).strip() for value in to_list(values, what)]
    if len(names) != count:
        raise DataError(f"{what}: got {len(names)}; expected a client for each of {count} samples")
    if "" in names:
        raise DataError(f"{what} is empty for sample {names.index('')}: name its client")
    distinct = class_names(names)
    return {"clients": class_indices(names, distinct), "client_names": distinct}
