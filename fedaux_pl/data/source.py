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
    """The samples of a data set, with their labels and clients if these are known.

    Args:
        inputs: N samples: images are uint8 of shape (N, C, H, W), texts are int32 token ids of
            shape (N, L). They are a tensor or, if the source leaves them on disk, LazyInputs.
        labels: The class of each sample, int64 of shape (N,) with values in
            0 ... len(classes) - 1; None without labels.
        classes: The name of each class; empty without labels.
        clients: The client that holds each sample, int64 of shape (N,) with values in
            0 ... len(client_names) - 1. None for training data that the data module splits over
            the clients, and for test data that belong to no client in particular.
        client_names: The name of each client; a client may have no sample in the test data.

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

    def _check(self, field: str, numbers: Tensor | None, num_names: int, names: str) -> None:
        """Raise a DataError unless each sample has a number in 0 ... num_names - 1."""
        if numbers is None:
            return
        if numbers.shape != (len(self.inputs),) or numbers.dtype != torch.int64:
            raise DataError(
                f"{field}: got {numbers.dtype} of shape {tuple(numbers.shape)}; expected int64 of "
                f"shape ({len(self.inputs)},), one for each sample"
            )
        low = int(numbers.min())
        high = int(numbers.max())
        if low < 0 or high >= num_names:
            raise DataError(
                f"{field}: got {low} to {high}; expected 0 ... {num_names - 1} for {num_names} "
                f"{names}"
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
        """Copy the samples at some positions, with their labels and clients; read no LazyInputs."""
        labels = None if self.labels is None else self.labels[rows]
        clients = None if self.clients is None else self.clients[rows]
        return replace(self, inputs=select(self.inputs, rows), labels=labels, clients=clients)

    def to(self, device: torch.device | str) -> "Examples":
        """Copy the inputs and labels to another device; the clients stay where they are."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, inputs=self.inputs.to(device), labels=labels)


class Source(ABC):
    """A data set that can be read from files, a hub or a Python program.

    Constructing a source reads no files, so that a configuration can be checked without the data.
    Each method reads the files that it needs. A configuration names a subclass by its full path,
    such as ``my_package.MySource``, or by its class name if its module is already imported.

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
    """The agreed names of the classes; empty if there is no agreement. The data module sets it to
    its argument ``classes``. If the data do not name their classes, integer labels are positions in
    it."""

    on_disk: bool = False
    """Whether inputs stay on disk, if the source supports this. The data module sets it."""

    download: bool | None = None
    """Whether missing public files are downloaded; None for the default of the source. The data
    module sets it to its argument ``download`` unless that is null."""

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the public files that some parts need, whether or not they exist already.

        The parts are ``train``, ``test`` and ``auxiliary``. A missing file that is the user's own
        raises a DataNotFoundError.
        """
        return []

    def image_bytes(self) -> int:
        """Return the bytes that all images take in memory, without reading them; 0 if unknown."""
        return 0

    @abstractmethod
    def train(self) -> Examples:
        """Return the training data, with labels, and with clients if the data name them."""

    def test(self) -> Examples:
        """Return the test data with the training data's classes, and with clients if named."""
        raise DataError(f"{type(self).__name__} has no test data: choose another source for it")

    def validation(self) -> Examples | None:
        """Return labeled data for choosing settings and rounds; None if the source has none."""
        return None

    def auxiliary(self) -> Inputs:
        """Return the inputs that can serve as public data D_aux: by default the training inputs."""
        return self.train().inputs

    def check_model(self, model: nn.Module) -> None:  # noqa: B027 - most sources fit every model
        """Raise a DataError if the model would misread the inputs, such as by its padding id."""

    @property
    def data_name(self) -> str:
        """The name of the data in names of runs: that of the class, or of a file or folder."""
        return type(self).__name__

    @property
    def input_format(self) -> dict[str, str | int]:
        """What ``predict`` must know, besides the shape, to turn new samples into inputs.

        For texts it is the tokenizer; for pictures it is the background of transparent pictures.
        """
        return {}

    def as_version_1(self) -> "Source":
        """Return a source that reads the same data as version 1 did.

        It is this object itself if version 1 read the same inputs.
        """
        return self


_NAMES_OF_PARTS = frozenset({"train", "training", "test", "val", "validation"})


def name_of_path(path: Path) -> str:
    """Return the name of the data at a path: that of the file or folder, without its suffix.

    A folder or file that is called like a part, such as ``train``, has the name of its parent.

    Examples:
        >>> name_of_path(Path("photos/train")), name_of_path(Path("photos.npz"))
        ('photos', 'photos')
    """
    path = path.absolute()
    while path.stem.lower() in _NAMES_OF_PARTS and path.parent.name:
        path = path.parent
    return readable(path.name if path.is_dir() else path.stem)


class PartSource(Source):
    """A source that reads all of its parts by one method, ``load``."""

    has_validation: ClassVar[bool] = True
    """Whether ``load`` knows the part ``validation``."""
    remedy = "choose another source for it"
    """The advice in the message for a part that the source does not have."""

    @abstractmethod
    def load(self, part: str) -> Examples | None:
        """Read the part ``train``, ``test`` or ``validation``; None if the source lacks it."""

    def train(self) -> Examples:
        """Return the training data, with labels, and with clients if the data name them."""
        return self.load_existing("train")

    def test(self) -> Examples:
        """Return the test data with the training data's classes, and with clients if named."""
        return self.load_existing("test")

    def validation(self) -> Examples | None:
        """Return the validation data with the training data's classes; None without any."""
        return self.load("validation") if self.has_validation else None

    def load_existing(self, part: str) -> Examples:
        """Read a part, or raise a DataError if the source does not have it."""
        examples = self.load(part)
        if examples is None:
            raise DataError(f"this {type(self).__name__} has no {part} data: {self.remedy}")
        return examples
