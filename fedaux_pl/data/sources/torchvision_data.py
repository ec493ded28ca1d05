"""Data sets of torchvision: CIFAR-10, CIFAR-100, SVHN and STL-10."""

import tarfile
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from fedaux_pl.data.cache import cached, fingerprint
from fedaux_pl.data.images import resize
from fedaux_pl.data.input_checks import check_size, not_found
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples, PartSource
from fedaux_pl.files import user_cache

# raised by torchvision for missing or damaged files, and by the network (URLError is an OSError)
_OPEN_ERRORS = (RuntimeError, OSError, EOFError, HTTPException, tarfile.TarError)
_STL10_CLASSES = (
    *("airplane", "bird", "car", "cat", "deer"),
    *("dog", "horse", "monkey", "ship", "truck"),
)


class _Torchvision(PartSource):
    """A data set of torchvision.

    Args:
        root: The folder that holds the data set.
        download: Whether to download the data set if it is missing.
    """

    _dataset: ClassVar[Any]
    _content: ClassVar[str]  # what the folder must hold, for messages

    def __init__(self, root: str | Path = "data", download: bool = False) -> None:
        self.root = Path(root).expanduser()
        self.download = download

    def _open(self, **options: Any) -> Any:
        """Open a part, such as ``split="test"``; raise a DataNotFoundError if that fails."""
        try:
            return self._dataset(self.root, download=self.download, **options)
        except _OPEN_ERRORS as error:
            name, content = self._dataset.__name__, self._content.format(**options)
            if self.download:
                what = f"{name} could not be downloaded ({error}) to"
                remedy = f"Check the network, or put {content} there by hand"
            else:
                # torchvision's RuntimeError adds nothing to this message; other errors do
                reason = "" if isinstance(error, RuntimeError) else f" ({error})"
                what = f"{name} was not found{reason}: {content}, undamaged, should be in"
                remedy = "Set `download: true`, or put the files there"
            raise not_found(what, self.root, remedy) from error


class CIFAR10(_Torchvision):
    """CIFAR-10: 50,000 training and 10,000 test photos, 32 x 32 pixels, 10 classes.

    Args:
        root: The folder that holds ``cifar-10-batches-py``.
        download: Whether to download the data set (170 MB) if it is missing.
    """

    _dataset = datasets.CIFAR10
    _content = "the folder cifar-10-batches-py"

    def load(self, part: str) -> Examples | None:
        """Load a part; there is no validation data."""
        if part == "validation":
            return None
        loaded = self._open(train=part == "train")
        images = torch.from_numpy(loaded.data).permute(0, 3, 1, 2).contiguous()
        return Examples(images, torch.tensor(loaded.targets), tuple(loaded.classes))


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test photos, 32 x 32 pixels, 100 classes.

    Args:
        root: The folder that holds ``cifar-100-python``.
        download: Whether to download the data set (169 MB) if it is missing.
    """

    _dataset = datasets.CIFAR100
    _content = "the folder cifar-100-python"


class SVHN(_Torchvision):
    """SVHN: 73,257 training and 26,032 test photos of digits, 32 x 32 pixels, 10 classes.

    The 531,131 easier images of the "extra" part are not used.

    Args:
        root: The folder that holds ``train_32x32.mat`` and ``test_32x32.mat``.
        download: Whether to download the files (182 MB and 64 MB) if they are missing.
    """

    _dataset = datasets.SVHN
    _content = "the file {split}_32x32.mat"

    def load(self, part: str) -> Examples | None:
        """Load a part; there is no validation data."""
        if part == "validation":
            return None
        loaded = self._open(split=part)
        images = torch.from_numpy(loaded.data).contiguous()
        return Examples(images, torch.from_numpy(loaded.labels), tuple("0123456789"))


class STL10(_Torchvision):
    """STL-10: 100,000 unlabeled photos, and 5,000 + 8,000 labeled ones of 10 classes.

    The images have 96 x 96 pixels and are scaled to ``size`` (bilinear, antialiased). The result
    is cached in the user's cache folder; the original files are read, and their checksums verified,
    only if nothing is cached.

    Args:
        root: The folder that holds ``stl10_binary``.
        download: Whether to download the data set (2.6 GB) if it is missing.
        size: The height and width of the images.
    """

    _dataset = datasets.STL10
    _content = "the folder stl10_binary"

    def __init__(self, root: str | Path = "data", download: bool = False, size: int = 32) -> None:
        super().__init__(root, download)
        self.size = check_size(size)

    def auxiliary(self) -> Inputs:
        """The 100,000 unlabeled images."""
        return self._get("unlabeled").inputs

    def load(self, part: str) -> Examples | None:
        """Load a part, or the ``unlabeled`` images; there is no validation data."""
        if part == "validation":
            return None
        folder, is_labeled = self.root / datasets.STL10.base_folder, part != "unlabeled"
        files = [folder / f"{part}_{kind}.bin" for kind in ("Xy" if is_labeled else "X")]
        if not all(file.is_file() for file in files):
            self._open(split="train")  # downloads all parts, or raises
        key: dict[str, str | int] = {"kind": f"stl10-{part}", "root": str(self.root.absolute())}
        key |= {"size": self.size, "files": fingerprint(files)}

        def build() -> dict[str, Tensor]:
            loaded = self._open(split=part)
            images = {"images": resize(torch.from_numpy(loaded.data), self.size)}
            labels = torch.from_numpy(loaded.labels.astype(np.int64))
            return {**images, "labels": labels} if is_labeled else images

        tensors = cached(user_cache(), key, build)
        labels = tensors.get("labels")
        return Examples(tensors["images"], labels, _STL10_CLASSES if is_labeled else ())
