"""Images in a user's .npz files."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.client_split import name_clients
from fedaux_pl.data.foreign_files import check_expansion, reason_of, shorten
from fedaux_pl.data.image_arrays import channels_first, resize
from fedaux_pl.data.input_checks import check_size, expand, not_found, number_classes
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, FedauxError

_CLIENTS, _VALIDATION = "train_client", "val_x"  # arrays that are read if there are any


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
        self.test_path = expand(test_path) or self.path
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

    def auxiliary(self) -> Tensor:
        """The training images; their labels are not read and may be missing."""
        return self._read(self.path, self.images)

    def _is_absent(self, name: str, default: str) -> bool:
        """Whether the file lacks an optional array, whose name the user has not changed."""
        if name != default:
            return False
        with _open(self.path) as file:
            return name not in file.files

    def _read(self, path: Path, name: str) -> Tensor:
        array, where = _read_array(path, name), f"{name!r} in {path.absolute()}"
        if array.dtype != np.uint8:
            raise DataError(
                f"{where} must be uint8 with values 0 ... 255, but is {array.dtype}: scale it to "
                "0 ... 255 and convert it to uint8"
            )
        images = torch.from_numpy(channels_first(array, where))
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
        name, hint = getattr(self, option), f": set `{option}` to the one that holds the labels"
        if option == "labels":
            hint += ", or to null to use the images as auxiliary data"
        array = _read_array(path, name, hint)
        if not np.issubdtype(array.dtype, np.integer):
            raise DataError(
                f"{name!r} in {path.absolute()} must be class indices 0, 1, 2 ... as integers, but "
                f"is {array.dtype}"
            )
        return torch.from_numpy(array.astype(np.int64))

    def _names(self, labels: Tensor) -> tuple[str, ...]:
        """The classes that the labels of a part index."""
        if self.classes is None and self._is_absent("classes", "classes"):
            if self.class_order:
                return tuple(self.class_order)
            training = labels if self.labels is None else self._labels(self.path, "labels")
            where = f"in {self.path.absolute()} they"
            remedy = "set data.classes, or an array `classes` in the file, to"
            return number_classes(torch.unique(training).tolist(), where, remedy)
        names = _read_array(self.path, self.classes or "classes")
        if names.ndim != 1:
            raise DataError(
                f"{self.classes or 'classes'!r} in {self.path.absolute()} must be a list of class "
                f"names, but has the shape {names.shape}"
            )
        return tuple(str(name) for name in names.tolist())


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Opens an .npz file; a damaged one can raise nearly any exception, here and in the block."""
    if not path.is_file():
        raise not_found("No NumPy file was found at", path, "Correct the path")
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive of named arrays")
        with np.load(path, allow_pickle=False) as file:  # unpickling can run arbitrary code
            yield file
    except FedauxError:
        raise
    except Exception as error:
        raise DataError(
            f"{path.absolute()} is not a readable .npz file ({reason_of(error)}): write it with "
            "numpy.savez, for example as numpy.savez(path, train_x=images), with images of one "
            "size and dtype uint8"
        ) from error


def _read_array(path: Path, name: str, hint: str = "") -> NDArray[Any]:
    """Reads one array; ``hint`` ends the error message if there is no such array."""
    with _open(path) as file:
        if name not in file.files:
            raise DataError(
                f"{path.absolute()} holds no array {name!r}; its arrays are "
                f"{shorten(file.files)}{hint}"
            )
        members = {member.filename.removesuffix(".npy"): member for member in file.zip.infolist()}
        stored = min(members[name].compress_size, path.stat().st_size)
        check_expansion(members[name].file_size, stored, f"{name!r} in {path.absolute()}")
        return np.asarray(file[name])
