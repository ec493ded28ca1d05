"""Images in a user's .npz files."""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.images import from_array, resize
from fedaux_pl.data.input_checks import (
    check_expansion,
    check_size,
    expand,
    not_found,
    reason_of,
    shorten,
)
from fedaux_pl.data.labels import Labels, distinct_classes, name_clients, number_labels, to_list
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs
from fedaux_pl.data.readers import ArrayFile, Convert
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, FedauxError

_OPTIONAL = (
    "val_x",
    "classes",
    "train_client",
    "test_client",
    "val_client",
)  # read if there are any
_ARRAYS = ("train_x", "train_y", "test_x", "test_y", "val_y", *_OPTIONAL)


class NpzImages(Source):
    """Image arrays in a file written by ``numpy.savez`` or ``numpy.savez_compressed``.

    A folder of .npy files with the names of the arrays, such as ``train_x.npy``, does as well.
    Compressed arrays cannot stay on disk (``data.memory``).

    The file has images and labels for training (``train_x``, ``train_y``) and test (``test_x``,
    ``test_y``) and, if there are any, for validation (``val_x``, ``val_y``); of auxiliary data
    only ``train_x`` is read. Images are uint8 of shape (N, C, H, W), (N, H, W, C) or (N, H, W);
    channels are last if the last dimension is 1 or 3 and the second is neither. Labels are class
    names, or integers that index an array ``classes`` of names or else ``data.classes``; without
    either they must be 0, 1, 2 ... without gaps. An array ``train_client`` has the client of each
    training image, a name or an integer; without it the clients get a random split. Arrays
    ``test_client`` and ``val_client`` likewise: metrics are then also measured for each client.

    Args:
        path: The .npz file, or the folder.
        test_path: That of the test arrays; null if they are in ``path``.
        arrays: The names of arrays that are called otherwise, such as {train_x: pictures}; null
            for one that is not to be read, such as {train_client: null}.
        size: The height and width to which the central square of each image is scaled (bilinear,
            antialiased); null to keep the images as they are.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from fedaux_pl.data import NpzImages
        >>> path = tempfile.mkdtemp() + "/images.npz"
        >>> np.savez(path, x=np.zeros((2, 8, 8, 3), np.uint8), train_y=np.array([0, 1]))
        >>> train = NpzImages(path, arrays={"train_x": "x"}).train()
        >>> train.inputs.shape, train.classes
        (torch.Size([2, 3, 8, 8]), ('0', '1'))
    """

    def __init__(
        self,
        path: str | Path,
        test_path: str | Path | None = None,
        arrays: dict[str, str | None] | None = None,
        size: int | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.test_path = expand(test_path) or self.path
        self.arrays = arrays or {}
        if unknown := [name for name in self.arrays if name not in _ARRAYS]:
            raise ValueError(
                f"arrays must give names to {', '.join(_ARRAYS)}, but has {unknown[0]!r}"
            )
        self.size = None if size is None else check_size(size)

    @property
    def data_name(self) -> str:
        """The name of the file."""
        return self.path.absolute().stem

    def train(self) -> Examples:
        """The training images, with labels and given clients."""
        return self._load("train", self.path)

    def test(self) -> Examples:
        """The test images, with the classes of the training images."""
        return self._load("test", self.test_path)

    def validation(self) -> Examples | None:
        """The validation images, with the classes of the training images; None without any."""
        return self._load("val", self.path) if self._has("val_x") else None

    def image_bytes(self) -> int:
        """The bytes of all arrays; of images that are scaled, before that."""
        size = 0
        for path in {self.path, self.test_path}:
            with _open(path) as arrays:
                size += arrays.size()
        return size

    def auxiliary(self) -> Inputs:
        """The training images; their labels are not read and may be missing."""
        return self._images("train_x", self.path)

    def _load(self, part: str, path: Path) -> Examples:
        labels, inputs = self._labels(f"{part}_y", path), self._images(f"{part}_x", path)
        names = self._classes(labels)
        array = f"{part}_client"
        where = f"{self._name(array)!r} in {path.absolute()}"
        clients = self._read(array, path) if self._has(array, path) else None
        owners = name_clients(clients, len(inputs), where)
        try:
            return Examples(inputs, number_labels(labels, names), names, **owners)
        except DataError as error:
            which = f"{self._name(f'{part}_x')!r} and {self._name(f'{part}_y')!r}"
            raise DataError(f"{which} in {path.absolute()}: {error}") from error

    def _images(self, array: str, path: Path) -> Inputs:
        if not self.on_disk:
            return self._convert(self._read(array, path), array, path)
        convert = partial(self._convert, array=array, path=path)
        with _open(path) as arrays:
            return LazyInputs(arrays.open(self._checked(array, path, arrays), convert))

    def _convert(self, values: NDArray[Any], array: str, path: Path) -> Tensor:
        images = from_array(values, f"{self._name(array)!r} in {path.absolute()}")
        return images if self.size is None else resize(images, self.size)

    def _labels(self, array: str, path: Path) -> Labels:
        return to_list(self._read(array, path), f"{self._name(array)!r} in {path.absolute()}")

    def _classes(self, labels: Labels) -> tuple[str, ...]:
        """Return the classes of the training images or, in a file without, of these labels."""
        if self._has("classes"):
            return tuple(map(str, self._labels("classes", self.path)))
        if self.class_order:
            return tuple(self.class_order)
        training = self._labels("train_y", self.path) if self._has("train_y") else labels
        remedy = "set data.classes, or an array `classes` in the file, to"
        return distinct_classes(training, f"in {self.path.absolute()} they", remedy)

    def _name(self, array: str) -> str | None:
        return self.arrays.get(array, array)

    def _has(self, array: str, path: Path | None = None) -> bool:
        """Whether an optional array is to be read: one that the user names must be there."""
        name = self._name(array)
        with _open(path or self.path) as arrays:
            return name in arrays.names or (array in _OPTIONAL and name not in (array, None))

    def _read(self, array: str, path: Path) -> NDArray[Any]:
        with _open(path) as arrays:
            return arrays.read(self._checked(array, path, arrays))

    def _checked(self, array: str, path: Path, arrays: "_Arrays") -> str:
        """Return the name of an array that must be there."""
        name = self._name(array)
        if name is None or name not in arrays.names:
            raise DataError(
                f"{path.absolute()} holds no array {name!r}; its arrays are "
                f"{shorten(list(arrays.names))}: set `arrays: {{{array}: NAME}}` to the one to read"
            )
        return name


class _Arrays:
    """The named arrays of an .npz file or of a folder of .npy files."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None) -> None:
        self.path, self.archive = path, archive
        files = sorted(path.glob("*.npy")) if archive is None else []
        entries = [] if archive is None else archive.infolist()
        # by name: the file, or the entry of the archive
        self.names: dict[str, Any] = {file.stem: file for file in files}
        self.names |= {entry.filename.removesuffix(".npy"): entry for entry in entries}

    def size(self) -> int:
        """Return the bytes of all arrays."""
        found = self.names.values()
        return sum(e.stat().st_size if isinstance(e, Path) else e.file_size for e in found)

    def read(self, name: str) -> NDArray[Any]:
        """Read an array into memory."""
        entry = self.names[name]
        if self.archive is None:
            return np.asarray(np.load(entry, allow_pickle=False))  # unpickling can run any code
        # numpy allocates what the archive declares
        stored = min(entry.compress_size, self.path.stat().st_size)
        check_expansion(entry.file_size, stored, f"{name!r} in {self.path.absolute()}")
        with self.archive.open(entry) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def open(self, name: str, convert: Convert) -> ArrayFile:
        """Return an array that stays on disk."""
        entry = self.names[name]
        if isinstance(entry, Path):
            return ArrayFile(entry, convert)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise DataError(
                f"{name!r} in {self.path.absolute()} is compressed and cannot stay on disk: write "
                "it with numpy.savez, or as .npy files in a folder, or set data.memory to host"
            )
        with self.path.open("rb") as file:
            file.seek(entry.header_offset + 26)  # the lengths of two fields before the array
            begin = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
        return ArrayFile(self.path, convert, begin, begin + entry.file_size)


@contextmanager
def _open(path: Path) -> Iterator[_Arrays]:
    """Open named arrays; a damaged file can raise nearly any exception, here and in the block."""
    if not path.exists():
        raise not_found("No NumPy file was found at", path, "Correct the path")
    try:
        if path.is_dir():
            yield _Arrays(path, None)
            return
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive of named arrays")
        with zipfile.ZipFile(path) as archive:
            yield _Arrays(path, archive)
    except FedauxError:
        raise
    except Exception as error:
        raise DataError(
            f"{path.absolute()} is not a readable .npz file ({reason_of(error)}): write it with "
            "numpy.savez, for example as numpy.savez(path, train_x=images), with images of one "
            "size and dtype uint8"
        ) from error
