"""Data sets of torchvision: CIFAR-10, CIFAR-100, SVHN and STL-10."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from fedaux_pl.data.cache import CacheKey, cached, fingerprint
from fedaux_pl.data.downloads import Download, PublishedFile, fetch_missing
from fedaux_pl.data.image_arrays import resize
from fedaux_pl.data.input_checks import check_size, not_found
from fedaux_pl.data.lazy_inputs import Inputs
from fedaux_pl.data.source import Examples, PartSource
from fedaux_pl.errors import first_line
from fedaux_pl.files import user_cache

_STL10_CLASSES = (
    "airplane",
    "bird",
    "car",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
)


class _Torchvision(PartSource):
    """A data set of torchvision.

    Args:
        root: The folder that holds the data set.
        download: Whether to download missing files; ``download`` of the data module overrides it.
        mirror: The URL of a folder with the same files, in place of the data set's own host.
    """

    has_validation = False
    _dataset: ClassVar[Any]
    _sizes: ClassVar[Mapping[str, int]]  # of each download, in bytes

    def __init__(
        self, root: str | Path = "data", download: bool = False, mirror: str | None = None
    ) -> None:
        self.root = Path(root).expanduser()
        self.download = download
        self.mirror = mirror

    def _published(self, url: str, md5: str | None, contents: Sequence[str] = ()) -> PublishedFile:
        """Return a download by the URL that torchvision has."""
        file = url.rpartition("/")[2]
        return PublishedFile(
            type(self).__name__,
            file,
            self.root,
            url if self.mirror is None else f"{self.mirror.rstrip('/')}/{file}",
            self._sizes[file],
            bool(self.download),
            md5=md5 or "",
            contents=contents,
        )

    def _open(self, **options: Any) -> Any:
        """Open a part that is there; raise a DataNotFoundError if that fails."""
        try:
            return self._dataset(self.root, **options)
        except (RuntimeError, OSError, EOFError) as error:  # of damaged files
            what = f"{type(self).__name__} cannot be read ({first_line(error)}) from"
            remedy = "Delete the damaged files and download them"
            raise not_found(what, self.root, remedy) from error


class _Archived(_Torchvision):
    """A data set that is one archive."""

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the archive with the files of all parts."""
        dataset = self._dataset
        files = [file for file, _ in dataset.train_list + dataset.test_list]
        if hasattr(dataset, "meta"):
            files.append(dataset.meta["filename"])
        contents = [f"{dataset.base_folder}/{file}" for file in files]
        return [self._published(dataset.url, dataset.tgz_md5, contents)]


class CIFAR10(_Archived):
    """CIFAR-10: 50,000 training and 10,000 test photos, 32 x 32 pixels, 10 classes.

    Args:
        root: The folder that holds ``cifar-10-batches-py``.
        download: Whether to download the data set (170 MB) if it is missing.
        mirror: The URL of a folder with a copy of ``cifar-10-python.tar.gz``; null for its host.
    """

    _dataset = datasets.CIFAR10
    _sizes: ClassVar = {"cifar-10-python.tar.gz": 170_498_071}

    def load(self, part: str) -> Examples:
        """Load a part."""
        fetch_missing(self.downloads([part]))
        loaded = self._open(train=part == "train")
        images = torch.from_numpy(loaded.data).permute(0, 3, 1, 2).contiguous()
        return Examples(images, torch.tensor(loaded.targets), tuple(loaded.classes))


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test photos, 32 x 32 pixels, 100 classes.

    Args:
        root: The folder that holds ``cifar-100-python``.
        download: Whether to download the data set (169 MB) if it is missing.
        mirror: The URL of a folder with a copy of ``cifar-100-python.tar.gz``; null for its host.
        all_auxiliary: Whether auxiliary data are all 60,000 images, as in the paper; else the
            training images.
    """

    _dataset = datasets.CIFAR100
    _sizes: ClassVar = {"cifar-100-python.tar.gz": 169_001_437}

    def __init__(
        self,
        root: str | Path = "data",
        download: bool = False,
        mirror: str | None = None,
        all_auxiliary: bool = False,
    ) -> None:
        super().__init__(root, download, mirror)
        self.all_auxiliary = all_auxiliary

    def auxiliary(self) -> Inputs:
        """The training images, followed by the test images with ``all_auxiliary``."""
        images = super().auxiliary()
        if not self.all_auxiliary:
            return images
        return torch.cat([images, self.test().inputs])  # type: ignore[list-item]


class SVHN(_Torchvision):
    """SVHN: 73,257 training and 26,032 test photos of digits, 32 x 32 pixels, 10 classes.

    The 531,131 easier images of the "extra" part are not used.

    Args:
        root: The folder that holds ``train_32x32.mat`` and ``test_32x32.mat``.
        download: Whether to download the files (182 MB and 64 MB) if they are missing.
        mirror: The URL of a folder with copies of the files; null for their host.
    """

    _dataset = datasets.SVHN
    _sizes: ClassVar = {"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384}

    def downloads(self, parts: Collection[str]) -> list[Download]:
        """Return the file of each part; auxiliary data are the training images."""
        splits = sorted({"test" if part == "test" else "train" for part in parts})
        files = [self._dataset.split_list[split] for split in splits]
        return [self._published(url, md5) for url, _, md5 in files]

    def load(self, part: str) -> Examples:
        """Load a part."""
        fetch_missing(self.downloads([part]))
        loaded = self._open(split=part)
        images = torch.from_numpy(loaded.data).contiguous()
        return Examples(images, torch.from_numpy(loaded.labels), tuple("0123456789"))


class STL10(_Archived):
    """STL-10: 100,000 unlabeled photos, and 5,000 + 8,000 labeled ones of 10 classes.

    The images have 96 x 96 pixels and are scaled to ``size`` (bilinear, antialiased). The result
    is cached in the user's cache folder; the original files are read, and their checksums verified,
    only if nothing is cached.

    Args:
        root: The folder that holds ``stl10_binary``.
        download: Whether to download the data set (2.6 GB) if it is missing.
        size: The height and width of the images.
        mirror: The URL of a folder with a copy of ``stl10_binary.tar.gz``; null for its host.
    """

    _dataset = datasets.STL10
    _sizes: ClassVar = {"stl10_binary.tar.gz": 2_640_397_119}

    def __init__(
        self,
        root: str | Path = "data",
        download: bool = False,
        size: int = 32,
        mirror: str | None = None,
    ) -> None:
        super().__init__(root, download, mirror)
        self.size = check_size(size)

    def auxiliary(self) -> Inputs:
        """The 100,000 unlabeled images."""
        return self.load_existing("unlabeled").inputs

    def load(self, part: str) -> Examples:
        """Load a part, or the ``unlabeled`` images."""
        folder = self.root / datasets.STL10.base_folder
        is_labeled = part != "unlabeled"
        files = [folder / f"{part}_{kind}.bin" for kind in ("Xy" if is_labeled else "X")]
        fetch_missing(self.downloads([part]))
        key: CacheKey = {
            "kind": f"stl10-{part}",
            "root": str(self.root.absolute()),
            "size": self.size,
            "files": fingerprint(files),
        }

        def build() -> dict[str, Tensor]:
            loaded = self._open(split=part)
            tensors = {"images": resize(torch.from_numpy(loaded.data), self.size)}
            if is_labeled:
                tensors["labels"] = torch.from_numpy(loaded.labels.astype(np.int64))
            return tensors

        tensors = cached(user_cache(), key, build)
        labels = tensors.get("labels")
        return Examples(tensors["images"], labels, _STL10_CLASSES if is_labeled else ())
