"""The subsets of ImageNet that serve the paper as auxiliary data."""

import re
from pathlib import Path

from torch import tensor

from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources._checks import check_size, not_found
from fedaux_pl.data.sources._files import list_images, load_images
from fedaux_pl.data.sources.wordnet import hyponyms, lemma
from fedaux_pl.errors import DataError

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
    """All classes of ImageNet, or Tiny ImageNet, below one entry of WordNet.

    Reads ``root/train/<id>/...`` or ``root/<id>/...``, where ``<id>`` is a WordNet id such as
    n02085620; images may lie deeper, as in Tiny ImageNet's ``<id>/images``. The square in the
    middle of each image is made ``size`` pixels wide (bilinear, antialiased).

    Args:
        root: The folder of ImageNet or Tiny ImageNet.
        subset: Animals, Birds, Dogs, Devices, Invertebrates or Structures, as in the paper's table
            of WordNet ids; Mammals, which the paper's text names where the table has Animals (the
            size given there is that of all animals); or any WordNet noun id, like n02121808.
        size: The height and width of the images that are returned.
        cache_dir: Where to keep the decoded images; by default ``.fedaux_cache`` in ``root``.
    """

    def __init__(
        self,
        root: str | Path,
        subset: str = "Birds",
        size: int = 32,
        cache_dir: str | Path | None = None,
    ) -> None:
        if subset not in SUBSETS and not re.fullmatch(r"n\d+", subset):
            raise ValueError(
                f"subset must be one of {', '.join(SUBSETS)}, or a WordNet id like n02121808, "
                f"but is {subset!r}"
            )
        self.root = Path(root).expanduser()
        self.subset = subset
        self.wnid = SUBSETS.get(subset, subset)
        lemma(self.wnid)  # an id that does not exist is an error before anything is read
        self.size = check_size(size)
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()

    def train(self) -> Examples:
        """The images of the subset, labelled with its classes in the order of their ids."""
        folders = self._class_folders()
        files: list[Path] = []
        labels: list[int] = []
        for label, folder in enumerate(folders):
            found = list_images(folder)
            if not found:
                raise DataError(
                    f"the class folder {folder.absolute()} holds no images: complete or remove it"
                )
            files += found
            labels += [label] * len(found)
        images = load_images(files, self.root, self.size, 3, self.cache_dir)
        return Examples(images, tensor(labels), _names([folder.name for folder in folders]))

    def _class_folders(self) -> list[Path]:
        """The folders of the classes in the subset, sorted."""
        place = self.root / "train" if (self.root / "train").is_dir() else self.root
        seen = []
        if place.is_dir():
            seen = [
                folder
                for folder in place.iterdir()
                if re.fullmatch(r"n\d{8}", folder.name) and folder.is_dir()
            ]
        if not seen:
            raise not_found(
                "No class folders of ImageNet, with names like n02085620, were found in",
                place,
                "Let `root` be the folder of ImageNet or Tiny ImageNet that holds `train`",
            )
        wanted = hyponyms(self.wnid)
        chosen = sorted(folder for folder in seen if folder.name in wanted)
        if not chosen:
            raise not_found(
                f"No class below {self.wnid} ({lemma(self.wnid)}; {len(wanted)} WordNet ids were "
                f"looked for) is among the {len(seen)} class folders in",
                place,
                "Choose another `subset`, or add its classes",
            )
        return chosen


def _names(wnids: list[str]) -> tuple[str, ...]:
    """Words for ids; ImageNet has two classes "crane", so that a word may need its id."""
    words = [lemma(wnid) for wnid in wnids]
    return tuple(
        f"{word} ({wnid})" if words.count(word) > 1 else word
        for word, wnid in zip(words, wnids, strict=True)
    )
