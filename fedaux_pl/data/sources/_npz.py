"""Reading single arrays of NumPy files."""

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

from fedaux_pl.data.sources._checks import not_found
from fedaux_pl.errors import DataError

DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


@contextmanager
def _open(path: Path) -> Iterator[NpzFile]:
    if not path.is_file():
        raise not_found("No NumPy file was found at", path, "Correct the path")
    # opened here, since numpy does not close a file that turns out to be damaged
    with path.open("rb") as stream:
        try:
            # pickled objects could run code of their own while they are read
            loaded = np.load(stream, allow_pickle=False)
        except DAMAGED as error:
            raise DataError(f"{path.absolute()} is not a readable .npz file ({error})") from error
        if not isinstance(loaded, NpzFile):
            raise DataError(
                f"{path.absolute()} holds a single array without a name: write it with "
                "numpy.savez, for example as numpy.savez(path, train_x=images)"
            )
        yield loaded


def has_array(path: Path, name: str) -> bool:
    """Whether a file holds an array of this name.

    Args:
        path: The .npz file.
        name: The name of the array.

    Returns:
        True if so.
    """
    with _open(path) as file:
        return name in file.files


def read_array(path: Path, name: str, hint: str = "") -> NDArray[Any]:
    """Reads one array.

    Args:
        path: The .npz file.
        name: The name of the array.
        hint: What else to say where there is no such array.

    Returns:
        The array.
    """
    with _open(path) as file:
        if name not in file.files:
            raise DataError(
                f"{path.absolute()} holds no array {name!r}, but: {', '.join(file.files)}{hint}"
            )
        try:
            return np.asarray(file[name])
        except DAMAGED as error:
            raise DataError(f"cannot read {name!r} in {path.absolute()} ({error})") from error


def read_images(path: Path, name: str) -> Tensor:
    """Reads images, whatever the order of their dimensions.

    Args:
        path: The .npz file.
        name: The name of the array.

    Returns:
        uint8 of shape (N, C, H, W).
    """
    array = read_array(path, name)
    if array.dtype != np.uint8:
        raise DataError(
            f"{name!r} in {path.absolute()} must be uint8 with values 0 ... 255, but is "
            f"{array.dtype}: convert it to uint8, scaled to 0 ... 255 if its range is another"
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


def read_labels(path: Path, name: str, hint: str = "") -> Tensor:
    """Reads labels.

    Args:
        path: The .npz file.
        name: The name of the array.
        hint: What else to say where there is no such array.

    Returns:
        int64 of the shape the array has.
    """
    array = read_array(path, name, hint)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{name!r} in {path.absolute()} must be the numbers of the classes, 0, 1, 2 ..., as "
            f"integers, but is {array.dtype}"
        )
    return torch.from_numpy(array.astype(np.int64))
