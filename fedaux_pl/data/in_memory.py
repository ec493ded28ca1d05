"""Data sets and arrays of the caller's Python program as a source."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fedaux_pl.data.labels import name_clients
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.part_contents import PartContents
from fedaux_pl.data.pil_images import WHITE, check_background
from fedaux_pl.data.read_samples import ARRAY_TYPES, is_labeled, read_samples
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.tokenizer import TextSource
from fedaux_pl.errors import DataError


class InMemory(TextSource):
    """Data sets and arrays that a Python program holds, read when they are needed.

    Each part has one of these forms:

    - a pair (inputs, labels) of NumPy arrays or tensors; labels can also be a list or a column of
      pandas. Images have the shape (N, C, H, W), (N, H, W, C) or (N, H, W). They are uint8, or
      floats in the range that the model expects, usually [0, 1]. Token ids are integers of shape
      (N, L).
    - a torch ``Dataset`` with a length, whose items are (input, label). An input is an image of
      PIL, an array, a tensor (C, H, W), or a text.
    - a ``Dataset`` of Hugging Face with the columns ``image`` or ``text``, and ``label``.
    - for auxiliary data, any of these forms without labels.

    All images must have the same size, and a transform must not be random, because every process,
    and a resumed run, must read the same data. Labels are class names or integers. Integers are
    positions in the class names that the data set has itself (``classes``, or a feature ``label``
    with names) or else in ``classes`` of the data module. Without class names they must be
    0, 1, 2 ... without gaps.

    Args:
        train: The training data.
        test: The test data; None for auxiliary data.
        validation: The validation data; None for none.
        clients: The client that holds each training sample, (N,) names or integers; None if the
            samples are split over the clients at random.
        tokenizer: For texts, a folder or a name on the hub, the same as the model's ``source``;
            None for the small English vocabulary of the package.
        max_length: For texts, the number of token ids of a text.
        test_clients: The client of each test sample, in the form of ``clients``: every metric is
            then also reported per client. None if test samples belong to no client in particular.
        background: The color on which transparent images of PIL are put, as in ``ImageFolder``.

    Examples:
        >>> import numpy as np
        >>> from fedaux_pl import FederatedDataModule
        >>> images, labels = np.zeros((6, 8, 8), np.uint8), np.array([0, 1, 0, 1, 0, 1])
        >>> part, clients = (images, labels), ["north"] * 2 + ["south"] * 4
        >>> data = FederatedDataModule({"train": part, "test": part, "clients": clients})
        >>> data.setup()
        >>> dict(zip(data.client_names, data.client_sizes))
        {'north': 2, 'south': 4}
    """

    python_only: ClassVar[bool] = True  # a configuration cannot name the data
    remedy = "pass a pair (training, test), or one for each client, or {'train': ..., 'test': ...}"

    def __init__(
        self,
        train: Any,
        test: Any = None,
        validation: Any = None,
        clients: Any = None,
        tokenizer: str | Path | None = None,
        max_length: int | None = None,
        test_clients: Any = None,
        background: str = WHITE,
    ) -> None:
        super().__init__(tokenizer, max_length)
        self.parts = {"train": train, "test": test, "validation": validation}
        self.clients = {"train": clients, "test": test_clients}
        self.background: str | None = check_background(background)  # None: see as_version_1
        self._has_transparent = False  # whether an image that was read is transparent
        self._classes: tuple[str, ...] = ()

    @property
    def input_format(self) -> dict[str, str | int]:
        """The input format of texts or, for images, the background if it is not white."""
        if self.max_length is not None or self.background in (WHITE, None):
            return super().input_format
        return {"background": str(self.background)}

    def as_version_1(self) -> Source:
        """Return a source that reads the pixels beneath transparent ones, if it has read any."""
        if not self._has_transparent:
            return self
        former = copy.copy(self)
        former.background = None
        return former

    def image_bytes(self) -> int:
        """Return the bytes of all arrays, including memory-mapped arrays."""
        inputs = [part[0] if is_labeled(part) else part for part in self.parts.values()]
        return sum(int(array.nbytes) for array in inputs if isinstance(array, ARRAY_TYPES))

    def auxiliary(self) -> Inputs:
        """Return the training inputs, which need no labels."""
        return self._read_inputs_and_labels("train", labeled=False).inputs

    def load(self, part: str) -> Examples | None:
        """Read a part, with its labels and clients if it has any; None without the part."""
        contents = self.read(part)
        if contents is None:
            return None
        if part == "train":
            self._classes = contents.find_classes(self.class_order)
        elif not self._classes:
            self.train()
        return contents.number(self._classes)

    def read(self, part: str) -> PartContents | None:
        """Read a part whose labels get their numbers later; None without the part."""
        if self.parts[part] is None:
            return None
        contents = self._read_inputs_and_labels(part, labeled=True)
        if contents.labels is None:
            return contents
        argument = "test_clients" if part == "test" else "clients"
        clients = name_clients(self.clients.get(part), len(contents.inputs), argument)
        return replace(contents, **clients)

    def _read_inputs_and_labels(self, part: str, labeled: bool) -> PartContents:
        samples = read_samples(self.parts[part], f"the {part} data", labeled, self.background)
        self._has_transparent |= samples.has_transparent
        return PartContents(self._to_inputs(samples.inputs), samples.labels, samples.class_names)

    def _to_inputs(self, values: Tensor | list[str]) -> Tensor:
        """Tokenize texts; return other inputs as they are."""
        if isinstance(values, Tensor):
            if self.max_length is not None:
                raise DataError("the inputs are no texts: leave out max_length, which is for texts")
            return values
        if self.max_length is None:
            raise DataError(
                "the inputs are texts: pass InMemory(..., tokenizer=..., max_length=128)"
            )
        return self._tokenize(values)
