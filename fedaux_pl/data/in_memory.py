"""Data of the caller's Python program: torch and Hugging Face data sets, and arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedaux_pl.data.client_split import name_clients, to_names
from fedaux_pl.data.foreign_files import shorten
from fedaux_pl.data.image_arrays import channels_first
from fedaux_pl.data.image_files import check_depth, convert, pixels_of
from fedaux_pl.data.input_checks import number_classes
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.text_reader import class_names
from fedaux_pl.data.tokenizer import MIN_LENGTH, TextSource
from fedaux_pl.errors import DataError

_ARGUMENTS = ("train", "test", "validation", "clients", "tokenizer", "max_length")
_ROWS_PER_READ = 1000

if TYPE_CHECKING:
    Data = Any
    """A source, or what :class:`InMemory` takes."""
else:
    Data = Source  # the type that the command line reads: a configuration names sources


@dataclass(frozen=True)
class _Samples:
    """Samples as they were read."""

    inputs: Tensor | list[str]
    labels: list[int] | list[str] | None = None  # indices or class names
    classes: tuple[str, ...] = ()  # empty if the data do not name them


class InMemory(TextSource):
    """Data sets and arrays of the caller, converted when they are needed.

    Each part is one of these:

    - a pair (inputs, labels) of NumPy arrays or tensors, or the inputs alone for auxiliary data.
      Labels can also be a list or a column of pandas. Images have the shape (N, C, H, W),
      (N, H, W, C) or (N, H, W), and are uint8, or floats that the model expects, usually in
      [0, 1]; token ids are integers of shape (N, L).
    - a torch ``Dataset`` with a length, whose items are (input, label), or an input alone for
      auxiliary data. An input is an image of PIL, an array or a tensor (C, H, W), or a text.
    - a ``Dataset`` of Hugging Face's ``datasets`` with the columns ``image`` or ``text``, and
      ``label``.

    All images must have one size, and a transform must not be random: every process, and a run that
    resumes, must read the same data. Labels are class names or integers. Integers index the names
    that a data set has itself (``classes``, or a feature ``label`` with names), or else ``classes``
    of the data module; without either they must be 0, 1, 2 ... without gaps.

    Args:
        train: The training data.
        test: The test data; None for none.
        validation: The validation data; None for none.
        clients: The client that holds each training sample, (N,) names or integers; None if the
            clients get a random split.
        tokenizer: For texts, a folder or a name on the hub, the same as the model's ``source``;
            None for the small English vocabulary of the package.
        max_length: For texts, the number of token ids of a text.

    Example:
        >>> import numpy as np
        >>> from fedaux_pl import FederatedDataModule
        >>> images, labels = np.zeros((6, 8, 8), np.uint8), np.array([0, 1, 0, 1, 0, 1])
        >>> site = ["north", "north", "south", "south", "south", "south"]
        >>> train, test = (images, labels), (images[:2], labels[:2])
        >>> data = FederatedDataModule({"train": train, "test": test, "clients": site})
        >>> data.setup()
        >>> dict(zip(data.client_names, data.client_sizes))
        {'north': 2, 'south': 4}
    """

    python_only: ClassVar[bool] = True
    """A configuration cannot name the data."""

    def __init__(
        self,
        train: Any,
        test: Any = None,
        validation: Any = None,
        clients: Any = None,
        tokenizer: str | Path | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(tokenizer, MIN_LENGTH if max_length is None else max_length)
        self.parts = {"train": train, "test": test, "validation": validation}
        self.clients = clients
        self.holds_texts = max_length is not None
        self._classes: tuple[str, ...] = ()

    def train(self) -> Examples:
        """The training data, with labels if it has any, and with given clients."""
        samples = self._read("train")
        if samples.labels is None:
            return Examples(self._inputs(samples))
        self._classes = tuple(self.class_order) or _class_names(samples)
        owners: tuple[Any, ...] = ()
        if self.clients is not None:
            owners = name_clients(self.clients, len(samples.labels), "clients")
        return Examples(self._inputs(samples), self._labels(samples), self._classes, *owners)

    def test(self) -> Examples:
        """The test data, with the classes of the training data."""
        if self.parts["test"] is None:
            raise DataError(
                "there is training data only: pass a pair (training, test), or {'train': ..., "
                "'test': ...}"
            )
        return self._load_other("test")

    def validation(self) -> Examples | None:
        """The validation data, with the classes of the training data; None without any."""
        return None if self.parts["validation"] is None else self._load_other("validation")

    def auxiliary(self) -> Tensor:
        """The training inputs; labels are not needed."""
        return self._inputs(self._read("train", labeled=False))

    @property
    def input_format(self) -> dict[str, str | int]:
        """The tokenizer and the length for texts, nothing for others."""
        return super().input_format if self.holds_texts else {}

    def check_model(self, model: nn.Module) -> None:
        """Raises a DataError for an encoder whose padding token differs from the tokenizer's."""
        if self.holds_texts:
            super().check_model(model)

    def _load_other(self, part: str) -> Examples:
        samples = self._read(part)
        if not self._classes:
            self.train()
        labels = None if samples.labels is None else self._labels(samples)
        return Examples(self._inputs(samples), labels, self._classes)

    def _read(self, part: str, labeled: bool = True) -> _Samples:
        return _read_samples(self.parts[part], f"the {part} data", labeled)

    def _inputs(self, samples: _Samples) -> Tensor:
        inputs = samples.inputs
        if isinstance(inputs, list) != self.holds_texts:
            raise DataError(
                "the inputs are no texts: leave out max_length, which is for texts"
                if self.holds_texts
                else "the inputs are texts: pass InMemory(..., tokenizer=..., max_length=128), "
                "which makes token ids"
            )
        return self._tokenize(inputs) if isinstance(inputs, list) else inputs

    def _labels(self, samples: _Samples) -> Tensor:
        index: dict[Any, int] = {name: i for i, name in enumerate(self._classes)}
        labels, names = samples.labels or [], samples.classes or self._classes
        index |= {i: index[name] for i, name in enumerate(names) if name in index}
        if unknown := [label for label in labels if label not in index]:
            raise DataError(
                f"labels must be 0 ... {len(self._classes) - 1} for the classes "
                f"({shorten(self._classes)}) or their names, but {unknown[0]!r} is among them: "
                "correct it, or set classes of the data module to the names of all classes"
            )
        return torch.tensor([index[label] for label in labels])


def _class_names(samples: _Samples) -> tuple[str, ...]:
    """The names that the data set has, or else the distinct labels."""
    if samples.classes:
        return samples.classes
    found: set[Any] = set(samples.labels or [])
    if all(isinstance(label, int) for label in found):
        return number_classes(
            found, "they", "pass class names as labels, or set classes of the data module to"
        )
    return class_names([str(label) for label in found])


def as_source(name: str, value: Data) -> Source:
    """Turns the data that a data module takes into a source.

    Args:
        name: The argument, for messages.
        value: A source; data that :class:`InMemory` takes; a pair (training, test) of such data; or
            a mapping such as ``{"train": ..., "test": ...}`` with the arguments of
            :class:`InMemory`, which a ``DatasetDict`` is.

    Example:
        >>> import torch
        >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> as_source("auxiliary", images).auxiliary().shape
        torch.Size([4, 1, 8, 8])
    """
    if isinstance(value, Source):
        return value
    if isinstance(value, Mapping):
        # a DatasetDict can have further splits, such as `unsupervised`
        unknown = [key for key in value if key not in _ARGUMENTS]
        if "train" in value and (not unknown or hasattr(value, "column_names")):
            return InMemory(**{key: value[key] for key in _ARGUMENTS if key in value})
        got, remedy = f"a mapping of {shorten([str(key) for key in value])}", "name a part `train`"
        if "train" in value:
            remedy = f"{unknown[0]!r} is none of its keys {', '.join(_ARGUMENTS)}"
    elif _is_array(value) or _is_dataset(value) or _is_labeled(value):
        return InMemory(value)
    elif _is_pair(value) and all(_is_dataset(part) or _is_labeled(part) for part in value):
        return InMemory(*value)
    elif isinstance(value, type) and issubclass(value, Source):
        got, remedy = f"the class {value.__name__}", f"pass an object, {value.__name__}(...)"
    else:
        got = f"{value!r}" if isinstance(value, str | Path) else f"a {type(value).__name__}"
        remedy = "wrap files in NpzImages, ImageFolder or TextFiles"
        if hasattr(value, "dataset"):
            remedy = "pass its `dataset`"
        elif hasattr(value, "__iter__") and not isinstance(value, str | type):
            remedy = "pass a data set with a length, whose items have indices"
    raise TypeError(
        f"{name} must be a Source, such as Digits(), a data set or arrays (see InMemory), but is "
        f"{got}: {remedy}"
    )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def _is_pair(value: object) -> TypeGuard[tuple[Any, Any]]:
    return isinstance(value, tuple) and len(value) == 2


def _is_labeled(value: object) -> bool:
    """Whether the value is a pair (inputs, labels) of arrays; labels can be a list or a column."""
    if not _is_pair(value) or not _is_array(value[0]):
        return False
    return isinstance(value[1], list) or hasattr(value[1], "__array__")


def _is_dataset(value: object) -> bool:
    """Whether the value has a length and items by index, as a data set of torch."""
    others = (str, bytes, tuple, type, np.ndarray, Tensor)
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return has_items and not isinstance(value, others)


def _read_samples(data: Any, what: str, labeled: bool) -> _Samples:
    """Reads all samples that :class:`InMemory` takes; ``what`` names them in messages."""
    if _is_array(data):
        return _Samples(_to_tensor(data, what))
    if _is_labeled(data):
        inputs, labels = data
        return _Samples(_to_tensor(inputs, what), _to_labels(labels, what) if labeled else None)
    if not _is_dataset(data):
        raise DataError(
            f"{what} must be arrays (inputs, labels), or a data set with a length, but is a "
            f"{type(data).__name__}"
        )
    if not len(data):
        raise DataError(f"{what} holds no samples")
    names: Any = getattr(data, "classes", None)
    if hasattr(data, "column_names"):
        names = getattr(data.features.get("label"), "names", None)
        items = _read_rows(data, what, labeled)
    else:
        items = (data[index] for index in range(len(data)))
    inputs, labels = [], []
    for index, item in enumerate(items):
        value, *rest = item if isinstance(item, tuple | list) else (item,)
        if len(rest) > 1:
            raise DataError(
                f"the items of {what} must be (input, label), or an input alone, but item {index} "
                f"has {len(item)} parts"
            )
        inputs.append(_to_plain(value, f"item {index} of {what}"))
        labels += [int(x) if isinstance(x, Tensor) else x for x in rest] if labeled else []
    if not hasattr(data, "column_names"):
        _check_repeatable(data[0], inputs[0], what)
    classes = tuple(map(str, names)) if isinstance(names, Sequence) else ()
    return _Samples(_stack(inputs, what), _to_labels(labels, what) if labels else None, classes)


def _read_rows(data: Any, what: str, labeled: bool) -> Iterator[list[Any]]:
    """The items of a data set of the ``datasets`` library, read in slices."""
    columns = list(data.column_names)
    found = [name for name in ("image", "text") if name in columns]
    if len(found) != 1:
        raise DataError(
            f"{what} must have a column `image` or `text`, and `label`, but has "
            f"{shorten(columns)}: rename one with dataset.rename_column"
        )
    wanted = found + ["label"] * (labeled and "label" in columns)
    plain = data.with_format(None)  # Python values and images, not arrays
    for start in range(0, len(data), _ROWS_PER_READ):
        rows = plain[start : start + _ROWS_PER_READ]
        yield from map(list, zip(*(rows[name] for name in wanted), strict=True))


def _check_repeatable(item: Any, first: Any, what: str) -> None:
    """Raises a DataError if the first item changes: processes would have different data."""
    again = _to_plain(item[0] if isinstance(item, tuple | list) else item, f"item 0 of {what}")
    same = torch.equal(first, again) if isinstance(first, Tensor) else first == again
    if not same:
        raise DataError(
            f"item 0 of {what} differs when it is read twice, but all processes and a resumed run "
            "must have the same data: remove random transforms"
        )


def _to_plain(value: Any, what: str) -> Any:
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
    if isinstance(inputs[0], str):
        if "" in (stripped := [text.strip() for text in inputs]):
            raise DataError(
                f"text {stripped.index('')} of {what} is empty: remove the samples without a text"
            )
        return inputs
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
    return _to_tensor(torch.stack(inputs), what)


def _to_tensor(values: Any, what: str) -> Tensor:
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


def _to_labels(values: Any, what: str) -> list[int] | list[str]:
    array = to_names(_to_numpy(values))
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"):
        raise DataError(
            f"the labels of {what} must be integers or class names, one for each sample, but are "
            f"{array.dtype} of shape {array.shape}"
        )
    labels: list[int] | list[str] = array.tolist()
    return labels


def _to_numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
