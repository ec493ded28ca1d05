"""STL-10, the auxiliary data of most of the paper's experiments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from fedaux_pl.data.cache import cached, fingerprint
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size
from fedaux_pl.data.sources._resize import resize
from fedaux_pl.data.sources._torchvision import open_dataset
from fedaux_pl.files import user_cache

PIXELS = 96
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


class STL10(Source):
    """STL-10: 100,000 unlabeled photos, and 5,000 + 8,000 labeled ones of 10 classes.

    The images have 96 x 96 pixels and are scaled to ``size`` (bilinear, antialiased). The result
    is cached in the user's cache folder; the original files are read, and their checksums verified,
    only if nothing is cached.

    Args:
        root: The folder that holds ``stl10_binary``.
        download: Whether to download the data set (2.6 GB) if it is missing.
        size: The height and width of the images.
    """

    def __init__(self, root: str | Path = "data", download: bool = False, size: int = 32) -> None:
        self.root = Path(root).expanduser()
        self.download = download
        self.size = check_size(size)

    def train(self) -> Examples:
        """The 5,000 labeled training images."""
        return self._labeled("train")

    def test(self) -> Examples:
        """The 8,000 labeled test images."""
        return self._labeled("test")

    def auxiliary(self) -> Tensor:
        """The 100,000 unlabeled images."""
        (file,) = self._files("unlabeled")

        def build() -> dict[str, Tensor]:
            self._open("train")  # verifies the checksums of the files of all parts
            # 2.8 GB, mapped so that one chunk at a time is in memory; stored column by column
            images = np.memmap(file, mode="c").reshape(-1, 3, PIXELS, PIXELS)
            return {"images": resize(torch.from_numpy(images).transpose(2, 3), self.size)}

        return self._cached("unlabeled", build)["images"]

    def _labeled(self, split: str) -> Examples:
        def build() -> dict[str, Tensor]:
            loaded = self._open(split)
            return {
                "images": resize(torch.from_numpy(loaded.data), self.size),
                "labels": torch.from_numpy(loaded.labels.astype(np.int64)),
            }

        tensors = self._cached(split, build)
        return Examples(tensors["images"], tensors["labels"], CLASSES)

    def _cached(self, split: str, build: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        files = self._files(split)
        if not all(file.is_file() for file in files):
            self._open("train")  # downloads all parts, or raises
        key: dict[str, str | int] = {
            "kind": f"stl10-{split}",
            "root": str(self.root.absolute()),
            "size": self.size,
            "files": fingerprint(files),
        }
        return cached(user_cache(), key, build)

    def _files(self, split: str) -> list[Path]:
        folder = self.root / datasets.STL10.base_folder
        return [folder / f"{split}_{part}.bin" for part in ("X" if split == "unlabeled" else "Xy")]

    def _open(self, split: str) -> Any:
        content = f"the folder {datasets.STL10.base_folder}"
        return open_dataset(datasets.STL10, self.root, content, self.download, split=split)
