"""Images in a user's .npz files."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size, not_found
from fedaux_pl.data.sources._resize import resize
from fedaux_pl.errors import DataError

_READ_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


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
        classes: The array of class names in ``path``; by default "classes", or the class indices
            if there is no such array.
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
    ) -> None:
        self.path = Path(path).expanduser()
        self.test_path = self.path if test_path is None else Path(test_path).expanduser()
        self.images = images
        self.labels = labels
        self.test_images = test_images
        self.test_labels = test_labels
        self.classes = classes
        self.size = None if size is None else check_size(size)

    def train(self) -> Examples:
        """The training images, with labels unless ``labels`` is null."""
        if self.labels is None:
            return Examples(self.auxiliary())
        hint = "; set `labels: null` to use the images as auxiliary data"
        labels = _read_labels(self.path, self.labels, hint)
        return Examples(self.auxiliary(), labels, self._names(labels))

    def test(self) -> Examples:
        """The test images, with the classes of the training images."""
        labels = _read_labels(self.test_path, self.test_labels)
        known = labels if self.labels is None else _read_labels(self.path, self.labels)
        return Examples(self._read(self.test_path, self.test_images), labels, self._names(known))

    def auxiliary(self) -> Tensor:
        """The training images; their labels are not read and may be missing."""
        return self._read(self.path, self.images)

    def _read(self, path: Path, name: str) -> Tensor:
        images = _read_images(path, name)
        return images if self.size is None else resize(images, self.size)

    def _names(self, labels: Tensor) -> tuple[str, ...]:
        if self.classes is None:
            with _open(self.path) as file:
                has_names = "classes" in file.files
            if not has_names:
                count = int(labels.max()) + 1 if len(labels) else 0
                return tuple(str(label) for label in range(count))
        names = _read_array(self.path, self.classes or "classes")
        return tuple(str(name) for name in names.tolist())


@contextmanager
def _open(path: Path) -> Iterator[NpzFile]:
    if not path.is_file():
        raise not_found("No NumPy file was found at", path, "Correct the path")
    # opened here, because numpy does not close a damaged file
    with path.open("rb") as stream:
        try:
            # unpickling objects can run arbitrary code
            loaded = np.load(stream, allow_pickle=False)
        except _READ_ERRORS as error:
            raise DataError(f"{path.absolute()} is not a readable .npz file ({error})") from error
        if not isinstance(loaded, NpzFile):
            raise DataError(
                f"{path.absolute()} holds a single array without a name: write it with "
                "numpy.savez, for example as numpy.savez(path, train_x=images)"
            )
        yield loaded


def _read_array(path: Path, name: str, hint: str = "") -> NDArray[Any]:
    """Reads one array; ``hint`` ends the error message if there is no such array."""
    with _open(path) as file:
        if name not in file.files:
            raise DataError(
                f"{path.absolute()} holds no array {name!r}; its arrays are "
                f"{', '.join(file.files)}{hint}"
            )
        try:
            return np.asarray(file[name])
        except _READ_ERRORS as error:
            raise DataError(f"cannot read {name!r} in {path.absolute()} ({error})") from error


def _read_images(path: Path, name: str) -> Tensor:
    """Reads images of any of the shapes that NpzImages allows, as (N, C, H, W)."""
    array = _read_array(path, name)
    if array.dtype != np.uint8:
        raise DataError(
            f"{name!r} in {path.absolute()} must be uint8 with values 0 ... 255, but is "
            f"{array.dtype}: scale it to 0 ... 255 and convert it to uint8"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or not 1 <= array.shape[1] <= 4:
        raise DataError(
            f"{name!r} in {path.absolute()} must have the shape (N, C, H, W) with 1 to 4 channels, "
            f"(N, H, W, C) with 1 or 3, or (N, H, W), but has {array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))


def _read_labels(path: Path, name: str, hint: str = "") -> Tensor:
    array = _read_array(path, name, hint)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{name!r} in {path.absolute()} must be class indices 0, 1, 2 ... as integers, but is "
            f"{array.dtype}"
        )
    return torch.from_numpy(array.astype(np.int64))
