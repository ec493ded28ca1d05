"""A small data set of handwritten digits that needs no download."""

from importlib.resources import as_file, files
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data.image_arrays import resize
from fedaux_pl.data.input_checks import check_size
from fedaux_pl.data.source import Examples, Source

_PARTS = ("private", "test", "auxiliary")
_MAX_PIXEL = 16  # in the file: a pixel counts the black pixels of a 4 x 4 block


class Digits(Source):
    """1,797 handwritten digits, 8 x 8 pixels, gray, 10 classes, included in the package.

    They are the test set of the UCI optical digits (Alpaydin and Kaynak 1998, CC BY 4.0), in three
    fixed disjoint parts: 901 private, 298 test and 598 auxiliary images. The images of each class
    were assigned, in the order of the file, to private, auxiliary, private, test, private,
    auxiliary, and so on, so that all parts have the same classes and writers.

    Args:
        part: The part that ``train()`` returns, with labels: private or auxiliary.
        size: The height and width of the images (bilinear, antialiased).

    Example:
        >>> from fedaux_pl.data import Digits
        >>> source = Digits(size=16)
        >>> source.train().inputs.shape, source.auxiliary().shape
        (torch.Size([901, 1, 16, 16]), torch.Size([598, 1, 16, 16]))
    """

    def __init__(self, part: Literal["private", "auxiliary"] = "private", size: int = 8) -> None:
        if part not in ("private", "auxiliary"):
            raise ValueError(f"part must be private or auxiliary, but is {part!r}")
        self.part = part
        self.size = check_size(size)

    def train(self) -> Examples:
        """The 901 private images, or the 598 auxiliary ones, depending on ``part``."""
        return self._load(self.part)

    def test(self) -> Examples:
        """The 298 test images."""
        return self._load("test")

    def auxiliary(self) -> Tensor:
        """The 598 auxiliary images."""
        return self._load("auxiliary").inputs

    def _load(self, part: str) -> Examples:
        source = files("fedaux_pl.data.assets") / "digits.npz"
        with as_file(source) as path, np.load(path) as file:
            chosen = file["part"] == _PARTS.index(part)
            images, labels = file["images"][chosen], file["labels"][chosen]
        scaled = np.rint(images * (255 / _MAX_PIXEL)).astype(np.uint8)
        inputs = resize(torch.from_numpy(scaled)[:, None], self.size)
        return Examples(inputs, torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))
