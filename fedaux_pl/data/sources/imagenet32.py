"""ImageNet at 32 x 32 pixels, in the batch files of its publishers."""

from pathlib import Path

import numpy as np
import torch

from fedaux_pl.data.input_checks import not_found, reason_of
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples, PartSource
from fedaux_pl.errors import DataError

_SIDE = 32


class ImageNet32(PartSource):
    """ImageNet downsampled to 32 x 32 pixels (Chrabaszcz et al. 2017): 1,281,167 training photos.

    Reads the files that image-net.org publishes as npz: ``train_data_batch_1.npz`` to
    ``train_data_batch_10.npz``, and ``val_data.npz`` as test data. Those that are missing are left
    out, so that a part of the batches serves as auxiliary data. Classes are named "1" to "1000".

    Args:
        root: The folder that holds the files.
    """

    has_validation = False

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()

    def auxiliary(self) -> Inputs:
        """The training images; their labels are not read."""
        return torch.cat([_images(path) for path in self._files("train")])

    def load(self, part: str) -> Examples:
        """Load a part."""
        files = self._files(part)
        labels = torch.cat([torch.from_numpy(_read(path, "labels")).long() for path in files])
        images = torch.cat([_images(path) for path in files])
        return Examples(images, labels - 1, tuple(map(str, range(1, 1001))))

    def _files(self, part: str) -> list[Path]:
        names = [f"train_data_batch_{number}.npz" for number in range(1, 11)]
        if part == "test":
            names = ["val_data.npz"]
        files = [self.root / name for name in names]
        files = [file for file in files if file.is_file()]
        if not files:
            raise not_found(f"ImageNet32 has no {names[0]} in", self.root, "Correct root")
        return files


def _images(path: Path) -> torch.Tensor:
    rows = _read(path, "data")
    if rows.ndim != 2 or rows.shape[1] != 3 * _SIDE**2 or rows.dtype != np.uint8:
        raise DataError(
            f"{path}: got data of {rows.dtype} and shape {rows.shape}; expected uint8 and "
            f"(N, {3 * _SIDE**2}): give the files for 32 x 32 pixels"
        )
    return torch.from_numpy(rows).view(-1, 3, _SIDE, _SIDE)


def _read(path: Path, array: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as file:
            return np.asarray(file[array])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)}): download it again") from error
