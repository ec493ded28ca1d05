"""Reads samples from arrays, torch data sets and Hugging Face data sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedaux_pl.data.array_layout import channels_first
from fedaux_pl.data.client_split import to_names
from fedaux_pl.data.foreign_files import shorten
from fedaux_pl.data.image_files import check_depth, convert, pixels_of
from fedaux_pl.errors import DataError

_ROWS_PER_READ = 1000
_INPUT_COLUMNS = ("image", "text")


@dataclass(frozen=True)
class Samples:
    """Samples as they were read.

    Args:
        inputs: Images, token ids or other samples, first dimension N; or a list of N texts.
        labels: N integers or class names; None for no labels.
        classes: The names of the classes; empty if the data do not name them.
    """

    inputs: Tensor | list[str]
    labels: list[int] | list[str] | None = None
    classes: tuple[str, ...] = ()


def is_array(value: object) -> bool:
    """Whether the value is a NumPy array or a tensor."""
    return isinstance(value, np.ndarray | Tensor)


def is_labeled(value: object) -> bool:
    """Whether the value is a pair (inputs, labels) of arrays; labels can be a list or a column."""
    if not isinstance(value, tuple) or len(value) != 2 or not is_array(value[0]):
        return False
    return isinstance(value[1], list) or hasattr(value[1], "__array__")


def is_dataset(value: object) -> bool:
    """Whether the value has a length and items by index, as a data set of torch."""
    others = (str, bytes, tuple, type, np.ndarray, Tensor)
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, others)


def read_samples(data: Any, what: str, labeled: bool = True) -> Samples:
    """Reads all samples of an array, of a pair (inputs, labels) of arrays, or of a data set.

    Args:
        data: See :class:`fedaux_pl.data.InMemory`.
        what: The data, for messages.
        labeled: Whether to read labels, if there are any.

    Raises:
        DataError: If there are none, or they do not fit together.
    """
    if is_array(data):
        return Samples(_array_inputs(data, what))
    if is_labeled(data):
        inputs, labels = data
        if labeled and len(inputs) != len(labels):
            raise DataError(
                f"{what} must have one label per input, but has {len(labels)} labels and "
                f"{len(inputs)} inputs"
            )
        found = _labels(_to_numpy(labels), what) if labeled else None
        return Samples(_array_inputs(inputs, what), found)
    if not is_dataset(data):
        raise DataError(
            f"{what} must be arrays (inputs, labels), or a data set with a length, but is a "
            f"{type(data).__name__}"
        )
    if not len(data):
        raise DataError(f"{what} holds no samples")
    read = _read_columns if hasattr(data, "column_names") else _read_items
    return read(data, what, labeled)


def _array_inputs(values: Any, what: str) -> Tensor:
    array = _to_numpy(values)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise DataError(f"the inputs of {what} must be numbers, but are {array.dtype}")
    if array.dtype in (np.float64, np.float16):
        array = array.astype(np.float32)
    if array.ndim == 2 and not np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(array.astype(np.int32))  # token ids
    if array.ndim in (3, 4):
        if array.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"the images of {what} must be uint8 in 0 ... 255, or floats, but are "
                f"{array.dtype}: convert them"
            )
        array = channels_first(array, what)
    return torch.from_numpy(np.ascontiguousarray(array))


def _to_numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _labels(values: Any, what: str) -> list[int] | list[str]:
    array = to_names(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"):
        raise DataError(
            f"the labels of {what} must be integers or class names, one for each sample, but are "
            f"{array.dtype} of shape {array.shape}"
        )
    labels: list[int] | list[str] = array.tolist()
    return labels


def _read_items(data: Any, what: str, labeled: bool) -> Samples:
    """Reads a torch data set item by item."""
    inputs, labels = [], []
    for index in range(len(data)):
        item = data[index]
        value, *rest = item if isinstance(item, tuple | list) else (item,)
        if len(rest) > 1:
            raise DataError(
                f"the items of {what} must be (input, label), or an input alone, but item {index} "
                f"has {len(item)} parts"
            )
        inputs.append(_plain(value, f"item {index} of {what}"))
        labels += rest if labeled else []
    _check_repeatable(data, inputs[0], what)
    if labels and len(labels) != len(inputs):
        raise DataError(f"{what} has {len(inputs)} items, but {len(labels)} of them have labels")
    names = getattr(data, "classes", None) or ()
    classes = tuple(str(name) for name in names) if isinstance(names, Sequence) else ()
    plain = [int(label) if isinstance(label, Tensor) else label for label in labels]
    return Samples(_stack(inputs, what), _labels(plain, what) if labels else None, classes)


def _check_repeatable(data: Any, first: Any, what: str) -> None:
    """Raises a DataError if the first item changes: processes would have different data."""
    item = data[0]
    again = _plain(item[0] if isinstance(item, tuple | list) else item, f"item 0 of {what}")
    same = torch.equal(first, again) if isinstance(first, Tensor) else first == again
    if not same:
        raise DataError(
            f"item 0 of {what} differs when it is read twice, but all processes and a resumed run "
            "must have the same data: remove random transforms"
        )


def _read_columns(data: Any, what: str, labeled: bool) -> Samples:
    """Reads a data set of the ``datasets`` library in slices."""
    columns = list(data.column_names)
    found = [name for name in _INPUT_COLUMNS if name in columns]
    if len(found) != 1:
        raise DataError(
            f"{what} must have a column `image` or `text`, and `label`, but has "
            f"{shorten(columns)}: rename one with dataset.rename_column"
        )
    plain = data.with_format(None)  # Python values and images, not arrays
    inputs: list[Any] = []
    labels: list[Any] = []
    for rows in _slices(plain, len(data)):
        for value in rows[found[0]]:
            inputs.append(_plain(value, f"row {len(inputs)} of {what}"))
        labels += rows["label"] if labeled and "label" in columns else []
    names = getattr(data.features["label"], "names", None) if labels else None
    return Samples(
        _stack(inputs, what), _labels(labels, what) if labels else None, tuple(names or ())
    )


def _slices(data: Any, count: int) -> Iterator[Any]:
    for start in range(0, count, _ROWS_PER_READ):
        yield data[start : min(start + _ROWS_PER_READ, count)]


def _plain(value: Any, what: str) -> Any:
    """An input as a text or as a tensor; images of PIL become uint8 of shape (C, H, W)."""
    if isinstance(value, str | Tensor):
        return value
    if isinstance(value, Image.Image):
        try:
            check_depth(value)
        except ValueError as error:
            raise DataError(f"{what} cannot be used ({error}): convert it to 8 bits") from error
        return pixels_of(convert(value, 1 if value.mode in ("1", "L", "LA") else 3))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    raise DataError(
        f"{what} must be an image of PIL, an array, a tensor or a text, but is a "
        f"{type(value).__name__}: convert it, with a transform for example"
    )


def _stack(inputs: list[Any], what: str) -> Tensor | list[str]:
    """One tensor of all inputs, or the list of texts."""
    texts = sum(isinstance(value, str) for value in inputs)
    if texts == len(inputs):
        if "" in (stripped := [text.strip() for text in inputs]):
            raise DataError(
                f"text {stripped.index('')} of {what} is empty: remove the samples without a text"
            )
        return inputs
    if texts:
        raise DataError(f"{what} must be texts or not, but {texts} of {len(inputs)} inputs are")
    shapes = {tuple(value.shape) for value in inputs}
    if {shape[:-2] for shape in shapes} == {(1,), (3,)} and len(shapes) == 2:
        # gray images among color images
        inputs = [value.expand(3, *value.shape[1:]) for value in inputs]
        shapes = {tuple(value.shape) for value in inputs}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise DataError(
            f"the inputs of {what} must have one size, but {len(shapes)} sizes occur, such as "
            f"{one} and {other}: resize them with a transform, such as "
            "torchvision.transforms.Resize((32, 32)), or save them as files for ImageFolder"
        )
    return _array_inputs(torch.stack(inputs), what)
