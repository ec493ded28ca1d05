"""A small real data set that needs no download."""

from importlib.resources import as_file, files
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size
from fedaux_pl.data.sources._resize import resize

PARTS = ("private", "test", "auxiliary")
LEVELS = 16  # the highest value in the file: pixels count the ink in blocks of 4 x 4


class Digits(Source):
    """1,797 handwritten digits, 8 x 8 pixels, grey, 10 classes, which come with the package.

    They are the test part of the UCI optical digits (Alpaydin and Kaynak 1998, CC BY 4.0), in
    three disjoint parts that are always the same: 901 private images, 298 for the test, and 598
    auxiliary ones. Each class was dealt, in the order of the file, to private, auxiliary, private,
    test, private, auxiliary, and so on; so every part has its share of each class and writer.

    Args:
        part: What ``train()`` returns: the private part, or the auxiliary one with its labels.
        size: The height and width of the images that are returned (bilinear, antialiased).
    """

    def __init__(self, part: Literal["private", "auxiliary"] = "private", size: int = 8) -> None:
        if part not in ("private", "auxiliary"):
            raise ValueError(f"part must be private or auxiliary, but is {part!r}")
        self.part = part
        self.size = check_size(size)

    def train(self) -> Examples:
        """The 901 private images, or the 598 auxiliary ones, as ``part`` says."""
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
            chosen = file["part"] == PARTS.index(part)
            images, labels = file["images"][chosen], file["labels"][chosen]
        scaled = np.rint(images * (255 / LEVELS)).astype(np.uint8)
        return Examples(
            resize(torch.from_numpy(scaled)[:, None], self.size),
            torch.from_numpy(labels.astype(np.int64)),
            tuple("0123456789"),
        )
