"""The subsets of ImageNet that the paper uses as auxiliary data, by WordNet's noun hierarchy."""

import copy
import re
from functools import cache
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import arange, tensor

from fedaux_pl.data.image_files import list_images
from fedaux_pl.data.input_checks import check_size, expand, not_found
from fedaux_pl.data.open_images import open_images
from fedaux_pl.data.pil_images import WHITE, check_background
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.errors import DataError, check_setting

SUBSETS = {
    "Animals": "n00015388",
    "Birds": "n01503061",
    "Dogs": "n02084071",
    "Devices": "n03183080",
    "Invertebrates": "n01905661",
    "Mammals": "n01861778",
    "Structures": "n04341686",
}


class ImageNetSubset(Source):
    """All classes of ImageNet or Tiny ImageNet below one WordNet synset.

    Reads ``root/train/<id>/...`` or ``root/<id>/...``, where ``<id>`` is a WordNet id such as
    n02085620; deeper folders, such as Tiny ImageNet's ``<id>/images``, are searched too. The
    central square of each image is scaled to ``size`` pixels (bilinear, antialiased).

    Args:
        root: The folder of ImageNet or Tiny ImageNet.
        subset: Animals, Birds, Dogs, Devices, Invertebrates or Structures, as in the paper's table
            of WordNet ids; Mammals, which the paper's text names in place of Animals (with the
            size of Animals); or any WordNet noun id, such as n02121808.
        size: The height and width of the images.
        cache_dir: The folder for decoded images; by default the user's cache folder.
        background: The color on which transparent pictures are put, as in ``ImageFolder``.
    """

    def __init__(
        self,
        root: str | Path,
        subset: str = "Birds",
        size: int = 32,
        cache_dir: str | Path | None = None,
        background: str = WHITE,
    ) -> None:
        expected = f"be one of {', '.join(SUBSETS)}, or a WordNet id like n02121808"
        is_known = subset in SUBSETS or re.fullmatch(r"n\d+", subset) is not None
        check_setting("subset", subset, is_known, expected)
        self.root = Path(root).expanduser()
        self.subset = subset
        self.wnid = SUBSETS.get(subset, subset)
        lemma(self.wnid)  # raises a ValueError if there is no such id
        self.size = check_size(size)
        self.cache_dir = expand(cache_dir)
        self.background: str | None = check_background(background)  # None: see as_version_1
        self._has_transparent = False  # whether one of the pictures read so far is

    @property
    def input_format(self) -> dict[str, str | int]:
        """The background of transparent pictures."""
        return {"background": self.background or WHITE}

    def as_version_1(self) -> Source:
        """Return the source that uncovers the pixels of transparent pictures, if it read any."""
        if not self._has_transparent:
            return self
        former = copy.copy(self)
        former.background = None
        return former

    def train(self) -> Examples:
        """The images of the subset; its classes are sorted by WordNet id."""
        folders = self._list_images()
        files = list(chain(*folders.values()))
        form = (self.size, 3, self.cache_dir, self.background)
        opened = open_images(files, self.root, *form, on_disk=self.on_disk)
        self._has_transparent |= opened.has_transparent
        counts = tensor([len(group) for group in folders.values()])
        labels = arange(len(counts)).repeat_interleave(counts)
        return Examples(opened.images, labels, _names([folder.name for folder in folders]))

    def image_bytes(self) -> int:
        """The bytes of all images of the subset at ``size``."""
        return sum(map(len, self._list_images().values())) * 3 * self.size**2

    def _list_images(self) -> dict[Path, list[Path]]:
        """Return the files of each class folder."""
        folders = self.class_folders()
        files = dict(zip(folders, list_images(folders), strict=True))
        for folder in folders:
            if not files[folder]:
                raise DataError(
                    f"the class folder {folder.absolute()} holds no images: complete or remove it"
                )
        return files

    def class_folders(self) -> list[Path]:
        """The folders of the classes of the subset, sorted by WordNet id."""
        parent = self.root / "train" if (self.root / "train").is_dir() else self.root
        entries = parent.iterdir() if parent.is_dir() else ()
        folders = [e for e in entries if re.fullmatch(r"n\d{8}", e.name) and e.is_dir()]
        if not folders:
            what = "No class folders of ImageNet, with names like n02085620, were found in"
            remedy = "Set `root` to the folder of ImageNet or Tiny ImageNet that holds `train`"
            raise not_found(what, parent, remedy)
        wanted = hyponyms(self.wnid)
        chosen = sorted(folder for folder in folders if folder.name in wanted)
        if not chosen:
            noun = f"{self.wnid} ({lemma(self.wnid)}, with {len(wanted)} WordNet ids)"
            what = f"No class below {noun} is among the {len(folders)} class folders in"
            raise not_found(what, parent, "Choose another `subset`, or add its classes")
        return chosen


def _names(wnids: list[str]) -> tuple[str, ...]:
    """Class names of WordNet ids; a name that occurs twice, such as "crane", gets its id."""
    words = [lemma(wnid) for wnid in wnids]
    return tuple(
        f"{word} ({wnid})" if words.count(word) > 1 else word
        for word, wnid in zip(words, wnids, strict=True)
    )


@cache
def _array(name: str) -> NDArray[np.int32]:
    table = files("fedaux_pl.data.assets") / "wordnet_hypernyms.npz"
    with as_file(table) as path, np.load(path) as arrays:
        return np.asarray(arrays[name])


@cache
def _lemmas() -> list[str]:
    return _array("lemmas").tobytes().decode("ascii").split("\n")


@cache
def _rows() -> dict[str, int]:
    """Return the row of each id in the table."""
    return {f"n{offset:08d}": row for row, offset in enumerate(_array("synset").tolist())}


def _row(wnid: str) -> int:
    """Return the row of an id in the table, or raise a ValueError."""
    expected = "be the id of a noun in WordNet 3.0, such as n02084071 (dog)"
    check_setting("subset", wnid, wnid in _rows(), expected)
    return _rows()[wnid]


@cache
def hyponyms(wnid: str) -> frozenset[str]:
    """Return the WordNet ids of all kinds and instances of a noun, at any depth, with its own."""
    newest = _array("synset")[[_row(wnid)]]
    synsets = newest
    while len(newest):
        children = _array("child")[np.isin(_array("parent"), newest)]
        newest = np.setdiff1d(children, synsets)
        synsets = np.concatenate([synsets, newest])
    return frozenset(f"n{offset:08d}" for offset in synsets.tolist())


def lemma(wnid: str) -> str:
    """Return the first word of a WordNet id, such as "dog" for n02084071."""
    return _lemmas()[_row(wnid)].replace("_", " ")
