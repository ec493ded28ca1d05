"""Data of the caller's Python program: torch and Hugging Face data sets, and arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fedaux_pl.data.client_split import name_clients
from fedaux_pl.data.foreign_files import shorten
from fedaux_pl.data.in_memory_reading import (
    Samples,
    is_array,
    is_dataset,
    is_labeled,
    read_samples,
)
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._text_source import TextSource
from fedaux_pl.data.text_reader import class_names
from fedaux_pl.data.tokenizer import MIN_LENGTH
from fedaux_pl.errors import DataError

_ARGUMENTS = ("train", "test", "validation", "clients", "tokenizer", "max_length")

if TYPE_CHECKING:
    Data = Any
    """A source, or what :class:`InMemory` takes."""
else:
    Data = Source  # the type that the command line reads: a configuration names sources


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

    def _read(self, part: str, labeled: bool = True) -> Samples:
        return read_samples(self.parts[part], f"the {part} data", labeled)

    def _inputs(self, samples: Samples) -> Tensor:
        is_text = isinstance(samples.inputs, list)
        if is_text != self.holds_texts:
            change = "leave out max_length, which is for texts"
            if is_text:
                change = "pass InMemory(..., tokenizer=..., max_length=128), which makes token ids"
            raise DataError(f"the inputs are {'texts' if is_text else 'no texts'}: {change}")
        inputs = samples.inputs
        return self._tokenize(inputs) if isinstance(inputs, list) else inputs

    def _labels(self, samples: Samples) -> Tensor:
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


def _class_names(samples: Samples) -> tuple[str, ...]:
    """The names that the data set has, or else the distinct labels."""
    if samples.classes:
        return samples.classes
    found: set[Any] = set(samples.labels or [])
    if all(isinstance(label, int) for label in found) and found != set(range(len(found))):
        raise DataError(
            f"labels must be 0 ... {len(found) - 1} for {len(found)} classes, but are "
            f"{shorten([str(label) for label in sorted(found)])}: pass classes to the data module, "
            "the names of all classes, which the labels index from 0, or class names as labels"
        )
    return class_names([str(label) for label in found])


def as_source(name: str, value: Data) -> Source:
    """Turns the data that a data module takes into a source.

    Args:
        name: The argument, for messages.
        value: A source; data that :class:`InMemory` takes; a pair (training, test) of such data; or
            a mapping such as ``{"train": ..., "test": ...}`` with the arguments of
            :class:`InMemory`, which a ``DatasetDict`` is.

    Raises:
        TypeError: For anything else.

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
    elif is_array(value) or is_dataset(value) or is_labeled(value):
        return InMemory(value)
    elif _is_pair(value, lambda part: is_dataset(part) or is_labeled(part)):
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


def _is_pair(value: object, is_part: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_part, value))
