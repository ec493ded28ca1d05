"""CIFAR-10 and CIFAR-100."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torchvision import datasets

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._torchvision import open_dataset


class CIFAR10(Source):
    """CIFAR-10: 50,000 training and 10,000 test photos, 32 x 32 pixels, 10 classes.

    Args:
        root: The folder that holds ``cifar-10-batches-py``.
        download: Whether to download the data set (170 MB) if it is missing.
    """

    _dataset: ClassVar[Any] = datasets.CIFAR10

    def __init__(self, root: str | Path = "data", download: bool = False) -> None:
        self.root = Path(root).expanduser()
        self.download = download

    def train(self) -> Examples:
        """The 50,000 training images."""
        return self._load(train=True)

    def test(self) -> Examples:
        """The 10,000 test images."""
        return self._load(train=False)

    def _load(self, train: bool) -> Examples:
        content = f"the folder {self._dataset.base_folder}"
        loaded = open_dataset(self._dataset, self.root, content, self.download, train=train)
        images = torch.from_numpy(loaded.data).permute(0, 3, 1, 2).contiguous()
        return Examples(images, torch.tensor(loaded.targets), tuple(loaded.classes))


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test photos, 32 x 32 pixels, 100 classes.

    Args:
        root: The folder that holds ``cifar-100-python``.
        download: Whether to download the data set (169 MB) if it is missing.
    """

    _dataset: ClassVar[Any] = datasets.CIFAR100

    def __init__(self, root: str | Path = "data", download: bool = False) -> None:
        super().__init__(root, download)
