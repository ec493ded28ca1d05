"""Reads the samples of arrays and data sets that the caller's Python program holds in memory.

A data set is an object with a length and items by index, of torch or of Hugging Face.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedaux_pl.data.image_arrays import from_array
from fedaux_pl.data.input_checks import shorten
from fedaux_pl.data.labels import Labels, to_list
from fedaux_pl.data.pil_images import note_transparent, read_pil
from fedaux_pl.errors import DataError

ARRAY_TYPES = (np.ndarray, Tensor)
_ROWS_PER_READ = 1000


@dataclass(frozen=True)
class Samples:
    """The samples of arrays or of a data set, as the caller gives them."""

    inputs: Tensor | list[str]  # texts are not tokenized yet
    labels: Labels | None  # names or integers; None without labels
    class_names: tuple[str, ...]  # that integer labels are positions in; empty if unknown
    has_transparent: bool  # whether some of the inputs are transparent images


def is_samples(value: Any) -> bool:
    """Return whether ``read_samples`` can read a value: arrays, or a data set."""
    return isinstance(value, ARRAY_TYPES) or is_labeled(value) or is_dataset(value)


def is_labeled(value: Any) -> bool:
    """Return whether a value is a pair of inputs, an array, and labels: a list or an array."""
    if not is_pair(value) or not isinstance(value[0], ARRAY_TYPES):
        return False
    # columns of pandas have the method __array__
    return isinstance(value[1], list) or hasattr(value[1], "__array__")


def is_dataset(value: Any) -> bool:
    """Return whether a value has a length and items by index, as a data set of torch does."""
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, (str, bytes, tuple, type, *ARRAY_TYPES))


def is_pair(value: Any) -> bool:
    """Return whether a value is a tuple of two."""
    return isinstance(value, tuple) and len(value) == 2


def read_samples(data: Any, data_name: str, labeled: bool, background: str | None) -> Samples:
    """Read all inputs, and their labels and class names if there are any.

    Args:
        data: An array of inputs, a pair (inputs, labels) of arrays, or a data set.
        data_name: The name of the data in messages, such as "the test data".
        labeled: Whether labels are read.
        background: The color on which transparent images of PIL are put; None to drop their alpha
            channel, as version 1 did.
    """
    if not is_samples(data):
        raise DataError(
            f"{data_name}: got {type(data).__name__}; expected arrays (inputs, labels), or a data "
            "set with a length"
        )
    if is_dataset(data):
        return _read_dataset(data, data_name, labeled, background)
    inputs, labels = data if is_labeled(data) else (data, ())
    return Samples(
        inputs=_to_tensor(inputs, data_name),
        labels=_to_labels(labels, data_name) if labeled else None,
        class_names=(),
        has_transparent=False,
    )


def _read_dataset(data: Any, data_name: str, labeled: bool, background: str | None) -> Samples:
    if len(data) == 0:
        raise DataError(f"{data_name} hold no samples")
    if hasattr(data, "column_names"):  # a data set of the library ``datasets``
        rows = _read_rows(data, data_name, labeled)
        items = _read_items(rows, data_name, background)
        class_names: Any = getattr(data.features.get("label"), "names", ())
    else:
        items = _read_items(map(data.__getitem__, range(len(data))), data_name, background)
        _check_same_twice(data, items.inputs[0], data_name, background)
        class_names = getattr(data, "classes", ())
    if background is not None:
        note_transparent(items.num_transparent, len(items.inputs), data_name, background)
    return Samples(
        inputs=_stack(items.inputs, data_name),
        labels=_to_labels(items.labels, data_name) if labeled else None,
        class_names=tuple(map(str, class_names)) if isinstance(class_names, Sequence) else (),
        has_transparent=items.num_transparent > 0,
    )


def _to_labels(labels: Any, data_name: str) -> Labels | None:
    """Return the labels as a list; None if there are none."""
    return to_list(labels, f"the labels of {data_name}") if len(labels) else None


@dataclass(frozen=True)
class _Items:
    """The items of a data set."""

    inputs: list[Any]  # tensors or texts
    labels: list[Any]  # one for each input, or none
    num_transparent: int


def _read_items(items: Iterable[Any], data_name: str, background: str | None) -> _Items:
    """Separate the inputs and the labels of items, each of which is (input, label) or an input."""
    inputs = []
    labels = []
    num_transparent = 0
    for index, item in enumerate(items):
        value, *item_labels = item if isinstance(item, tuple | list) else (item,)
        if len(item_labels) > 1:
            raise DataError(
                f"item {index} of {data_name} has {len(item)} parts: give (input, label)"
            )
        plain, is_transparent = _to_plain(value, f"item {index} of {data_name}", background)
        inputs.append(plain)
        num_transparent += is_transparent
        labels += [int(label) if isinstance(label, Tensor) else label for label in item_labels]
    return _Items(inputs, labels, num_transparent)


def _check_same_twice(data: Any, first: Any, data_name: str, background: str | None) -> None:
    """Raise a DataError if the first input of a data set differs when it is read again."""
    [again] = _read_items([data[0]], data_name, background).inputs
    is_same = torch.equal(first, again) if isinstance(first, Tensor) else first == again
    if not is_same:
        raise DataError(
            f"item 0 of {data_name} differs when it is read twice, but all processes and a resumed "
            "run must have the same data: remove random transforms"
        )


def _read_rows(data: Any, data_name: str, labeled: bool) -> Iterator[list[Any]]:
    """Yield the items of a data set of the library ``datasets``, which is read in slices."""
    columns = list(data.column_names)
    wanted = [name for name in ("image", "text") if name in columns]
    if len(wanted) != 1:
        raise DataError(
            f"{data_name}: got columns {shorten(columns)}; expected `image` or `text`, and "
            "`label`: rename one with dataset.rename_column"
        )
    if labeled and "label" in columns:
        wanted.append("label")
    plain = data.with_format(None)  # Python values and images instead of arrays
    for start in range(0, len(data), _ROWS_PER_READ):
        rows = plain[start : start + _ROWS_PER_READ]
        yield from map(list, zip(*(rows[name] for name in wanted), strict=True))


def _to_plain(value: Any, item_name: str, background: str | None) -> tuple[Any, bool]:
    """Return an input as a text or a tensor, and whether it is a transparent image.

    Images of PIL become uint8 tensors of shape (C, H, W).
    """
    if isinstance(value, str | Tensor):
        return value, False
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value), False
    if isinstance(value, Image.Image):
        try:
            pixels, original = read_pil(value, background=background)
        except ValueError as error:
            raise DataError(
                f"{item_name} cannot be used ({error}): convert it to 8 bits"
            ) from error
        return pixels, original.is_transparent
    raise DataError(
        f"{item_name}: got {type(value).__name__}; expected an image of PIL, an array, a tensor or "
        "a text: convert it, with a transform for example"
    )


def _stack(inputs: list[Any], data_name: str) -> Tensor | list[str]:
    """Return one tensor of all inputs, or the list of texts."""
    if isinstance(inputs[0], str):
        for index, text in enumerate(inputs):
            if not text.strip():
                raise DataError(f"text {index} of {data_name} is empty: remove such samples")
        return inputs
    if {value.shape[:-2] for value in inputs} == {(1,), (3,)}:  # gray images among color images
        inputs = [value.expand(3, *value.shape[1:]) for value in inputs]
    shapes = {tuple(value.shape) for value in inputs}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise DataError(
            f"the inputs of {data_name}: got {len(shapes)} sizes, such as {one} and {other}; "
            "expected one: resize them, as torchvision.transforms.Resize((32, 32)) does"
        )
    return _to_tensor(torch.stack(inputs), data_name)


def _to_tensor(values: Any, data_name: str) -> Tensor:
    """Return numbers as a tensor: images in the shape and dtype of ``from_array``, or token ids."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise DataError(f"the inputs of {data_name}: got {array.dtype}; expected numbers")
    if array.dtype in (np.float64, np.float16):
        array = array.astype(np.float32)
    if array.ndim == 2 and not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(array.astype(np.int32))  # token ids
    if array.ndim in (3, 4):
        return from_array(array, f"the array of {data_name}", floats=True)
    return torch.from_numpy(np.ascontiguousarray(array))
