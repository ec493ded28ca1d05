"""Images in a user's .npz files."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.array_layout import channels_first
from fedaux_pl.data.client_split import name_clients
from fedaux_pl.data.foreign_files import check_expansion, reason_of, shorten
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size, not_found
from fedaux_pl.data.sources._resize import resize
from fedaux_pl.errors import DataError, FedauxError

_NPY_MAGIC = b"\x93NUMPY"
_CLIENTS, _VALIDATION = "train_client", "val_x"  # arrays that are read if there are any
_HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


class NpzImages(Source):
    """Image arrays in a file written by ``numpy.savez`` or ``numpy.savez_compressed``.

    Images are uint8 of shape (N, C, H, W), (N, H, W, C) or (N, H, W). Channels are last if the
    last dimension is 1 or 3 and the second is neither.

    Args:
        path: The .npz file.
        test_path: The .npz file of the test arrays; null if they are in ``path``.
        images: The array of the training images.
        labels: The array of their labels (integers from 0); null for none. Without labels the
            source can be auxiliary data only.
        test_images: The array of the test images.
        test_labels: The array of their labels.
        classes: The array of class names in ``path``, which the labels index; by default "classes".
            Without such an array the labels index ``data.classes``; if these are not set either,
            they must be 0, 1, 2 ... without gaps.
        clients: The array of each training image's client, names or integers. By default
            "train_client" if there is such an array; null if the clients get a random split.
        validation_images: The array of validation images in ``path``. By default "val_x" if there
            is such an array; null for none.
        validation_labels: The array of their labels.
        size: The height and width to which the central square of each image is scaled (bilinear,
            antialiased); null to keep the images as they are.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from fedaux_pl.data import NpzImages
        >>> path = tempfile.mkdtemp() + "/images.npz"
        >>> np.savez(path, train_x=np.zeros((2, 8, 8, 3), np.uint8), train_y=np.array([0, 1]))
        >>> train = NpzImages(path).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 3, 8, 8]), ('0', '1'))
    """

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        images: str = "train_x",
        labels: str | None = "train_y",
        test_images: str = "test_x",
        test_labels: str = "test_y",
        classes: str | None = None,
        size: int | None = None,
        clients: str | None = _CLIENTS,
        validation_images: str | None = _VALIDATION,
        validation_labels: str = "val_y",
    ) -> None:
        self.path = Path(path).expanduser()
        self.test_path = self.path if test_path is None else Path(test_path).expanduser()
        self.images = images
        self.labels = labels
        self.test_images = test_images
        self.test_labels = test_labels
        self.classes = classes
        self.size = None if size is None else check_size(size)
        self.clients = clients
        self.validation_images = validation_images
        self.validation_labels = validation_labels

    @property
    def data_name(self) -> str:
        """The name of the file."""
        return self.path.absolute().stem

    def train(self) -> Examples:
        """The training images, with labels unless ``labels`` is null, and with given clients."""
        if self.labels is None:
            return Examples(self.auxiliary())
        train = self._load(self.path, self.images, "labels")
        if self.clients is None or self._is_absent(self.clients, _CLIENTS):
            return train
        where = f"{self.clients!r} in {self.path.absolute()}"
        owners = name_clients(_read_array(self.path, self.clients), len(train), where)
        return Examples(train.inputs, train.labels, train.classes, *owners)

    def test(self) -> Examples:
        """The test images, with the classes of the training images."""
        return self._load(self.test_path, self.test_images, "test_labels")

    def validation(self) -> Examples | None:
        """The validation images, with the classes of the training images; None without any."""
        name = self.validation_images
        if name is None or self._is_absent(name, _VALIDATION):
            return None
        return self._load(self.path, name, "validation_labels")

    def _is_absent(self, name: str, default: str) -> bool:
        """Whether the file lacks an optional array, whose name the user has not changed."""
        if name != default:
            return False
        with _open(self.path) as archive:
            return name not in _names_of(archive)

    def auxiliary(self) -> Tensor:
        """The training images; their labels are not read and may be missing."""
        return self._read(self.path, self.images)

    def _read(self, path: Path, name: str) -> Tensor:
        images = _read_images(path, name)
        return images if self.size is None else resize(images, self.size)

    def _load(self, path: Path, images: str, option: str) -> Examples:
        """Loads images with the labels whose array an option names."""
        labels = self._labels(path, option)
        inputs, names = self._read(path, images), self._names(labels)
        try:
            return Examples(inputs, labels, names)
        except DataError as error:
            raise DataError(
                f"{images!r} and {getattr(self, option)!r} in {path.absolute()}: {error}"
            ) from error

    def _labels(self, path: Path, option: str) -> Tensor:
        hint = f": set `{option}` to the one that holds the labels"
        if option == "labels":
            hint += ", or to null to use the images as auxiliary data"
        return _read_labels(path, getattr(self, option), hint)

    def _names(self, labels: Tensor) -> tuple[str, ...]:
        """The classes that the labels of a part index."""
        if self.classes is None and self._is_absent("classes", "classes"):
            if self.class_order:
                return tuple(self.class_order)
            return self._numbers(
                labels if self.labels is None else self._labels(self.path, "labels")
            )
        names = _read_array(self.path, self.classes or "classes")
        if names.ndim != 1:
            raise DataError(
                f"{self.classes or 'classes'!r} in {self.path.absolute()} must be a list of class "
                f"names, but has the shape {names.shape}"
            )
        return tuple(str(name) for name in names.tolist())

    def _numbers(self, labels: Tensor) -> tuple[str, ...]:
        """The class indices as names; raises a DataError if a class has no samples."""
        found = torch.unique(labels)
        if len(found) and not torch.equal(found, torch.arange(len(found))):
            shown = shorten([str(label) for label in found.tolist()])
            raise DataError(
                f"labels must be 0 ... {len(found) - 1} for {len(found)} classes, but in "
                f"{self.path.absolute()} they are {shown}: set data.classes, or an array `classes` "
                "in the file, to the names of all classes, which the labels index from 0"
            )
        return tuple(str(label) for label in range(len(found)))


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise not_found("No NumPy file was found at", path, "Correct the path")
    with path.open("rb") as stream:
        magic = stream.read(len(_NPY_MAGIC))
        if magic == _NPY_MAGIC:
            raise DataError(
                f"{path.absolute()} holds a single array without a name: write it with "
                "numpy.savez, for example as numpy.savez(path, train_x=images)"
            )
        try:
            # a damaged archive can raise nearly any exception, here and in the block
            with zipfile.ZipFile(stream) as archive:
                yield archive
        except FedauxError:
            raise
        except Exception as error:
            raise DataError(
                f"{path.absolute()} is not a readable .npz file ({reason_of(error)}): write it "
                "with numpy.savez, for example as numpy.savez(path, train_x=images)"
            ) from error


def _names_of(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _read_array(path: Path, name: str, hint: str = "") -> NDArray[Any]:
    """Reads one array; ``hint`` ends the error message if there is no such array."""
    with _open(path) as archive:
        if name not in (names := _names_of(archive)):
            raise DataError(
                f"{path.absolute()} holds no array {name!r}; its arrays are {shorten(names)}{hint}"
            )
        member = archive.getinfo(f"{name}.npy")
        where = f"{name!r} in {path.absolute()}"
        stored = min(member.compress_size, path.stat().st_size)
        check_expansion(member.file_size, stored, where)
        with archive.open(member) as stream:
            _check_header(stream, member.file_size, where)
        with archive.open(member) as stream:
            # unpickling objects can run arbitrary code
            return np.asarray(npy_format.read_array(stream, allow_pickle=False))


def _check_header(stream: IO[bytes], size: int, where: str) -> None:
    """Raises a DataError unless the header of an array declares plain values of the file's size."""
    version = npy_format.read_magic(stream)
    if version not in _HEADER_READERS:
        raise DataError(f"{where} must be a plain array, but has version {version} of the format")
    shape, _, dtype = _HEADER_READERS[version](stream)
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects, which could run code when loaded: write a plain "
            "array, with images of one size and dtype uint8"
        )
    declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or declared != size - stream.tell():
        raise DataError(
            f"{where} is damaged: it should hold {shape} values of {dtype}, but has "
            f"{size - stream.tell()} bytes"
        )


def _read_images(path: Path, name: str) -> Tensor:
    """Reads images of any of the shapes that NpzImages allows, as (N, C, H, W)."""
    array, where = _read_array(path, name), f"{name!r} in {path.absolute()}"
    if array.dtype != np.uint8:
        raise DataError(
            f"{where} must be uint8 with values 0 ... 255, but is {array.dtype}: scale it to "
            "0 ... 255 and convert it to uint8"
        )
    return torch.from_numpy(channels_first(array, where))


def _read_labels(path: Path, name: str, hint: str) -> Tensor:
    array = _read_array(path, name, hint)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{name!r} in {path.absolute()} must be class indices 0, 1, 2 ... as integers, but is "
            f"{array.dtype}"
        )
    return torch.from_numpy(array.astype(np.int64))
