"""Street View House Numbers."""

from pathlib import Path

import torch
from torchvision import datasets

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._torchvision import open_dataset


class SVHN(Source):
    """SVHN: 73,257 training and 26,032 test photos of digits, 32 x 32 pixels, 10 classes.

    Args:
        root: The folder that holds ``train_32x32.mat`` and ``test_32x32.mat``.
        download: Whether to download the files (182 MB and 64 MB) if they are missing.
    """

    def __init__(self, root: str | Path = "data", download: bool = False) -> None:
        self.root = Path(root).expanduser()
        self.download = download

    def train(self) -> Examples:
        """The 73,257 training images, without the 531,131 easier ones of the "extra" part."""
        return self._load("train")

    def test(self) -> Examples:
        """The 26,032 test images."""
        return self._load("test")

    def _load(self, split: str) -> Examples:
        content = f"the file {split}_32x32.mat"
        loaded = open_dataset(datasets.SVHN, self.root, content, self.download, split=split)
        images = torch.from_numpy(loaded.data).contiguous()
        return Examples(images, torch.from_numpy(loaded.labels), tuple("0123456789"))
