"""Images in a user's .npz files."""

import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.image_arrays import from_array, resize
from fedaux_pl.data.input_checks import (
    check_expansion,
    check_size,
    check_unchanged,
    expand,
    file_state,
    path_not_found,
    reason_of,
    shorten,
)
from fedaux_pl.data.labels import Labels, distinct_classes, name_clients, number_labels, to_list
from fedaux_pl.data.lazy_inputs import Inputs, LazyInputs, Rows
from fedaux_pl.data.source import Examples, PartSource, name_of_path
from fedaux_pl.errors import DataError, FedauxError, check_setting

Convert = Callable[[NDArray[Any]], Tensor]
"""Turns rows of an array into inputs, each row by itself."""
_OPTIONAL = ("val_x", "classes", "train_client", "test_client", "val_client")
_ARRAYS = ("train_x", "train_y", "test_x", "test_y", "val_y", *_OPTIONAL)


class NpzImages(PartSource):
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
        self.arrays: dict[str, str | None] = {**{n: n for n in _ARRAYS}, **(arrays or {})}
        is_known = set(self.arrays) == set(_ARRAYS)
        check_setting("arrays", arrays, is_known, f"give names to {', '.join(_ARRAYS)}")
        self.size = None if size is None else check_size(size)

    @property
    def data_name(self) -> str:
        """The name of the file, or of the folder of a file such as ``train``."""
        return name_of_path(self.path)

    def image_bytes(self) -> int:
        """The bytes of all arrays; of images that are scaled, before that."""
        total = 0
        for path in {self.path, self.test_path}:
            for entry in _entries(path).values():
                total += entry.stat().st_size if isinstance(entry, Path) else entry.file_size
        return total

    def auxiliary(self) -> Inputs:
        """The training images; their labels are not read and may be missing."""
        return self._images("train_x")

    def load(self, part: str) -> Examples | None:
        """Load a part; there is validation data if the file has an array of that name."""
        part = "val" if part == "validation" else part
        if part == "val" and not self._has("val_x"):
            return None
        labels = self._labels(f"{part}_y")
        inputs = self._images(f"{part}_x")
        array = f"{part}_client"
        values = self._read(array) if self._has(array) else None
        clients = name_clients(values, len(inputs), self._where(array))
        where = self._where(f"{part}_y")
        names = self._classes(labels, where)
        try:
            return Examples(inputs, number_labels(labels, names), names, **clients)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error

    def _images(self, array: str) -> Inputs:
        def convert(values: NDArray[Any]) -> Tensor:
            images = from_array(values, self._where(array))
            return images if self.size is None else resize(images, self.size)

        if not self.on_disk:
            return convert(self._read(array))
        path = self._path(array)
        with _refusing(path):
            return _open_rows(path, self._entry(array), convert)

    def _labels(self, array: str) -> Labels:
        return to_list(self._read(array), self._where(array))

    def _classes(self, labels: Labels, where: str) -> tuple[str, ...]:
        """Return the classes of the training images or, in a file without, of these labels."""
        if self._has("classes"):
            return tuple(map(str, self._labels("classes")))
        if self.class_order:
            return tuple(self.class_order)
        if self._has("train_y"):
            labels = self._labels("train_y")
            where = self._where("train_y")
        return distinct_classes(labels, f"labels of {where}")

    def _path(self, array: str) -> Path:
        """Return the file or folder of an array."""
        return self.test_path if array.startswith("test_") else self.path

    def _where(self, array: str) -> str:
        return f"{self.arrays[array]!r} in {self._path(array).absolute()}"

    def _has(self, array: str) -> bool:
        """Whether an optional array is to be read: one that the user names must be there."""
        name = self.arrays[array]
        is_there = name in _entries(self._path(array))
        return is_there or (array in _OPTIONAL and name not in (array, None))

    def _entry(self, array: str) -> Path | zipfile.ZipInfo:
        """Return an array that must be there."""
        name = self.arrays[array]
        path = self._path(array)
        entries = _entries(path)
        if name is None or name not in entries:
            raise DataError(
                f"{path.absolute()} holds no array {name!r}; its arrays are "
                f"{shorten(list(entries))}: set `arrays: {{{array}: NAME}}` to the one to read, "
                "or add it"
            )
        return entries[name]

    def _read(self, array: str) -> NDArray[Any]:
        entry = self._entry(array)
        path = self._path(array)
        with _refusing(path):  # allow_pickle=False: unpickling can run any code
            if isinstance(entry, Path):
                return np.asarray(np.load(entry, allow_pickle=False))
            # numpy allocates what the archive declares
            stored = min(entry.compress_size, path.stat().st_size)
            check_expansion(entry.file_size, stored, self._where(array))
            # not np.load, which returns the bytes of an entry without the header of an array
            with zipfile.ZipFile(path) as archive, archive.open(entry) as file:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _entries(path: Path) -> dict[str, Path | zipfile.ZipInfo]:
    """Return the arrays of an .npz file, or of a folder of .npy files, by name."""
    if not path.exists():
        raise path_not_found("No NumPy file was found at", path)
    if path.is_dir():
        return {file.stem: file for file in sorted(path.glob("*.npy"))}
    with _refusing(path), zipfile.ZipFile(path) as archive:
        return {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}


def _open_rows(path: Path, entry: Path | zipfile.ZipInfo, convert: Convert) -> LazyInputs:
    """Return an array that stays on disk, of which single rows are read and converted.

    Rows are read by position and not through a memory map: mapped pages count as resident memory,
    and a file that becomes shorter would kill the process.
    """
    if isinstance(entry, Path):
        path = entry
    elif entry.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"{entry.filename.removesuffix('.npy')!r} in {path.absolute()} is compressed and "
            "cannot stay on disk: write it with numpy.savez, or as .npy files in a folder, or set "
            "data.memory to host"
        )
    with path.open("rb") as file:
        opened = file_state(file.fileno())
        _, end, _ = opened
        if isinstance(entry, zipfile.ZipInfo):
            file.seek(entry.header_offset + 26)  # the lengths of two fields before the array
            begin = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
            end = begin + entry.file_size
            file.seek(begin)
        read_header = np.lib.format.read_array_header_2_0
        if np.lib.format.read_magic(file) == (1, 0):
            read_header = np.lib.format.read_array_header_1_0
        shape, is_fortran, dtype = read_header(file)
        data = file.tell()
    kind = f"{dtype} of shape {shape}"
    if is_fortran or dtype.hasobject or not math.prod(shape):
        raise ValueError(f"expected numbers in C order, but got {kind}")
    size = math.prod(shape[1:]) * dtype.itemsize
    if shape[0] * size > end - data:
        raise DataError(
            f"{path.absolute()} is shorter than it says: its array ({kind}) has "
            f"{shape[0] * size:,} bytes, but {end - data:,} are there: copy or write it again"
        )

    def read(rows: Rows) -> Tensor:
        result = np.empty((len(rows), *shape[1:]), dtype)
        view = result.reshape(-1).view(np.uint8).data
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        try:
            with path.open("rb", buffering=0) as file:  # a buffer would read more than a row
                check_unchanged(path, file_state(file.fileno()), opened)
                for start, stop in zip([0, *breaks], [*breaks, len(rows)], strict=True):
                    file.seek(data + int(rows[start]) * size)  # neighbors are read at once
                    missing = view[start * size : stop * size]
                    while len(missing):  # one call reads at most 2 GiB
                        count = file.readinto(missing)
                        if not count:
                            raise OSError("it has become shorter")
                        missing = missing[count:]
        except OSError as error:
            raise DataError(f"{path.absolute()} cannot be read anymore: {error}") from error
        return convert(result)

    first = read(np.zeros(1, np.int64))
    return LazyInputs(read, (shape[0], *first.shape[1:]), first.dtype)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn what a damaged file raises, which can be nearly any exception, into a DataError."""
    try:
        yield
    except FedauxError:
        raise
    except Exception as error:
        raise DataError(
            f"{path.absolute()} is not a readable .npz file ({reason_of(error)}): write it with "
            "numpy.savez, for example as numpy.savez(path, train_x=images), with images of one "
            "size and dtype uint8, and names of dtype str, not object"
        ) from error
