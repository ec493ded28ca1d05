"""The base class of data sources, and the examples that they return."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedaux_pl.data.downloads import Download
from fedaux_pl.data.input_checks import check_finite
from fedaux_pl.data.lazy_inputs import Inputs, select
from fedaux_pl.errors import DataError
from fedaux_pl.names import readable


@dataclass(frozen=True)
class Examples:
    """Samples, in memory or to be read, with or without labels.

    Args:
        inputs: The samples, first dimension N; images are uint8 of shape (N, C, H, W), texts are
            int32 token ids of shape (N, L). LazyInputs of a source that leaves them on disk.
        labels: int64 of shape (N,) with values in 0 ... len(classes) - 1, or None.
        classes: The name of each class; empty without labels.
        clients: The client that holds each sample, int64 of shape (N,) with values in
            0 ... len(client_names) - 1; None for training data that a data module splits, and for
            test data that are of no client in particular.
        client_names: The name of each client; test data need not have samples of all.

    Examples:
        >>> import torch
        >>> from fedaux_pl.data import Examples
        >>> images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> examples = Examples(images, torch.tensor([1, 0]), classes=("cat", "dog"))
        >>> [examples.classes[label] for label in examples.targets]
        ['dog', 'cat']
    """

    inputs: Inputs
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    clients: Tensor | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.inputs) == 0:
            raise DataError("the data set holds no samples")
        check_finite(self.inputs)
        self._check("labels", self.labels, len(self.classes), "classes")
        self._check("clients", self.clients, len(self.client_names), "client names")

    def _check(self, what: str, values: Tensor | None, count: int, names: str) -> None:
        if values is None:
            return
        if values.shape != (len(self.inputs),) or values.dtype != torch.int64:
            raise DataError(
                f"{what}: got {values.dtype} of shape {tuple(values.shape)}; expected int64 of "
                f"shape ({len(self.inputs)},), one for each sample"
            )
        low = int(values.min())
        high = int(values.max())
        if low < 0 or high >= count:
            raise DataError(
                f"{what}: got {low} to {high}; expected 0 ... {count - 1} for {count} {names}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def targets(self) -> Tensor:
        """The labels; raises a DataError if there are none."""
        if self.labels is None:
            raise DataError("the examples have no labels: use a source with labels")
        return self.labels

    def take(self, rows: Tensor | slice) -> "Examples":
        """Copy some samples, with their labels and clients; lazy inputs stay unread."""
        labels = None if self.labels is None else self.labels[rows]
        clients = None if self.clients is None else self.clients[rows]
        return replace(self, inputs=select(self.inputs, rows), labels=labels, clients=clients)

    def to(self, device: torch.device | str) -> "Examples":
        """Copy to another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, inputs=self.inputs.to(device), labels=labels)


class Source(ABC):
    """A data set that loads itself into memory.

    Constructing a source reads no files, so that a configuration can be checked without the data;
    each method reads the files that it needs. A subclass can be chosen by its class name in a
    configuration once its module is imported, and always by its full path, such as
    ``my_package.MySource``.

    Examples:
        >>> import torch
        >>> from fedaux_pl.data import Examples, Source
        >>> class Noise(Source):
        ...     def train(self):
        ...         return Examples(torch.randint(256, (100, 3, 32, 32), dtype=torch.uint8))
        >>> Noise().auxiliary().shape
        torch.Size([100, 3, 32, 32])
    """

    class_order: Sequence[str] = ()
    """The agreed classes, ``classes`` of the data module, which sets it; empty for none. Integer
    labels without names of their own index them."""

    on_disk: bool = False
    """Whether inputs are to stay on disk, if the source can; the data module sets it."""

    download: bool | None = None
    """Whether missing public files are downloaded; ``download`` of the data module overrides it."""

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the public files of some parts: ``train``, ``test`` or ``auxiliary``.

        They may be there or not. Files of the user that are missing raise a DataNotFoundError.
        """
        return []

    def image_bytes(self) -> int:
        """The bytes that all images take in memory, found without reading them; 0 if unknown."""
        return 0

    @abstractmethod
    def train(self) -> Examples:
        """The training data, with labels and the clients that hold them if the source has these."""

    def test(self) -> Examples:
        """The test data, with the classes of the training data, and clients if it has these."""
        raise DataError(f"{type(self).__name__} has no test data: choose another source for it")

    def validation(self) -> Examples | None:
        """Labeled data to choose settings and rounds by; None if the source has none."""
        return None

    def auxiliary(self) -> Inputs:
        """The inputs that can be the public data D_aux; by default the training inputs."""
        return self.train().inputs

    def check_model(self, model: nn.Module) -> None:  # noqa: B027 - most sources fit every model
        """Raise a DataError if the model would misread the inputs, as with another padding id."""

    @property
    def data_name(self) -> str:
        """What tells the data from others, for names of runs: the class, or a file or folder."""
        return type(self).__name__

    @property
    def input_format(self) -> dict[str, str | int]:
        """How to turn new samples into inputs, beyond the shape.

        For texts, the tokenizer; for pictures, the background of those that are transparent.
        """
        return {}

    def as_version_1(self) -> "Source":
        """Return the same data as version 1 read them: this source if the inputs are the same."""
        return self


_PARTS = frozenset({"train", "training", "test", "val", "validation"})


def name_of_path(path: Path) -> str:
    """Return what data at a path are called: the file or folder, or the one above ``train``.

    Examples:
        >>> name_of_path(Path("photos/train")), name_of_path(Path("photos.npz"))
        ('photos', 'photos')
    """
    path = path.absolute()
    while path.stem.lower() in _PARTS and path.parent.name:
        path = path.parent
    return readable(path.name if path.is_dir() else path.stem)


class PartSource(Source):
    """A source that loads all of its parts in one method."""

    has_validation: ClassVar[bool] = True
    """Whether ``load`` knows the part ``validation``."""
    remedy = "choose another source for it"
    """What to do if there is no test data."""

    @abstractmethod
    def load(self, part: str) -> Examples | None:
        """Load a part: ``train``, ``test`` or ``validation``; None if there is none."""

    def train(self) -> Examples:
        """The training data, with labels and the clients that hold them if the source has these."""
        return self._get("train")

    def test(self) -> Examples:
        """The test data, with the classes of the training data, and clients if it has these."""
        return self._get("test")

    def validation(self) -> Examples | None:
        """The validation data, with the classes of the training data; None without any."""
        return self.load("validation") if self.has_validation else None

    def _get(self, part: str) -> Examples:
        examples = self.load(part)
        if examples is None:
            raise DataError(f"this {type(self).__name__} has no {part} data: {self.remedy}")
        return examples
