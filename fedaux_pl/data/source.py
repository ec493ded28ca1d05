"""The base class of data sources, and the examples that they return."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedaux_pl.data.input_checks import check_finite
from fedaux_pl.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Samples in memory, with or without labels.

    Args:
        inputs: The samples, first dimension N; images are uint8 of shape (N, C, H, W), texts are
            int32 token ids of shape (N, L).
        labels: int64 of shape (N,) with values in 0 ... len(classes) - 1, or None.
        classes: The name of each class; empty without labels.

    Raises:
        DataError: If there are no samples, inputs are not finite, or labels have another shape,
            dtype or range.

    Example:
        >>> import torch
        >>> from fedaux_pl.data import Examples
        >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> examples = Examples(images, torch.tensor([1, 0]), classes=("cat", "dog"))
        >>> [examples.classes[label] for label in examples.targets]
        ['dog', 'cat']
    """

    inputs: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.inputs) == 0:
            raise DataError("the data set holds no samples")
        check_finite(self.inputs)
        if self.labels is None:
            return
        if self.labels.shape != (len(self.inputs),) or self.labels.dtype != torch.int64:
            raise DataError(
                f"labels must be int64 of shape ({len(self.inputs)},), one for each sample, "
                f"but are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"labels must lie in 0 ... {len(self.classes) - 1} for {len(self.classes)} "
                f"classes, but run from {low} to {high}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def targets(self) -> Tensor:
        """The labels; raises a DataError if there are none."""
        if self.labels is None:
            raise DataError("the examples have no labels: use a source with labels")
        return self.labels

    def to(self, device: torch.device | str) -> "Examples":
        """A copy on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Examples(self.inputs.to(device), labels, self.classes)


class Source(ABC):
    """A data set that loads itself into memory.

    Constructing a source reads no files, so that a configuration can be checked without the data;
    each method reads the files that it needs.

    A subclass can be chosen by its class name in a configuration once its module is imported, and
    always by its full path, such as ``my_package.MySource``.

    Example:
        >>> import torch
        >>> from fedaux_pl.data import Examples, Source
        >>> class Noise(Source):
        ...     def train(self):
        ...         return Examples(torch.randint(256, (100, 3, 32, 32), dtype=torch.uint8))
        >>> Noise().auxiliary().shape
        torch.Size([100, 3, 32, 32])
    """

    @abstractmethod
    def train(self) -> Examples:
        """The training data, with labels if the source has them."""

    def test(self) -> Examples:
        """The test data."""
        raise DataError(f"{type(self).__name__} has no test data: choose another source for it")

    def auxiliary(self) -> Tensor:
        """The inputs that can be the public data D_aux; by default the training inputs."""
        return self.train().inputs

    def check_model(self, model: nn.Module) -> None:  # noqa: B027 - most sources fit every model
        """Raises a DataError if the model would misread the inputs, as with another padding id."""

    @property
    def input_format(self) -> dict[str, str | int]:
        """How to turn new samples into inputs, beyond the shape: for texts, the tokenizer."""
        return {}


def check_source(name: str, value: object) -> None:
    """Raises a TypeError if the argument ``name`` of a data module is not a source."""
    if isinstance(value, Source):
        return
    if isinstance(value, type) and issubclass(value, Source):
        got, remedy = f"the class {value.__name__}", f"pass an object, {value.__name__}(...)"
    else:
        got = f"{value!r}" if isinstance(value, str | Path) else f"a {type(value).__name__}"
        remedy = (
            "wrap files in NpzImages, ImageFolder or TextFiles, and other data in a subclass of "
            "Source whose train() and test() return Examples"
        )
    raise TypeError(f"{name} must be a Source, such as Digits(), but is {got}: {remedy}")
