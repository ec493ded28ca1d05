"""CIFAR-100."""

from pathlib import Path
from typing import Any, ClassVar

from torchvision import datasets

from fedaux_pl.data.sources.cifar10 import CIFAR10


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test photos, 32 x 32 pixels, 100 classes.

    Args:
        root: The folder that holds ``cifar-100-python``.
        download: Whether to download the data set (169 MB) where it is missing.
    """

    _dataset: ClassVar[Any] = datasets.CIFAR100

    def __init__(self, root: str | Path = "data", download: bool = False) -> None:
        super().__init__(root, download)
