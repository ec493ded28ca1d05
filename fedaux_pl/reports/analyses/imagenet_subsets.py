"""Tab. 6 of the paper: the subsets of ImageNet, their WordNet ids and sizes."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from fedaux_pl.data.image_files import list_images
from fedaux_pl.data.sources._wordnet import hyponyms, lemma
from fedaux_pl.data.sources.imagenet_subset import SUBSETS, ImageNetSubset
from fedaux_pl.reports.items import Item, TableItem

PUBLISHED = {
    "Devices": 165_747,
    "Birds": 76_541,
    "Animals": 510_530,
    "Dogs": 147_873,
    "Invertebrates": 79_300,
    "Structures": 74_400,
}
"""The sizes in the paper's table."""
MEAN_IMAGES = 1_281_167 / 1000
"""The training images of a class of ILSVRC-2012, on average; a class has 732 to 1,300."""


@cache
def ilsvrc_classes() -> frozenset[str]:
    """The WordNet ids of the 1,000 classes of ILSVRC-2012.

    Example:
        >>> len(ilsvrc_classes()), "n02085620" in ilsvrc_classes()
        (1000, True)
    """
    text = (files("fedaux_pl.data.assets") / "ilsvrc2012_synsets.txt").read_text()
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def imagenet_subsets(root: Path | None = None) -> list[Item]:
    """Lists the subsets: classes that WordNet puts below each id, and their images.

    Args:
        root: The folder of ImageNet or Tiny ImageNet, whose images are counted; None for none.
    """
    counted = {} if root is None else {name: count_images(root, name) for name in PUBLISHED}
    rows = []
    for name, published in PUBLISHED.items():
        wnid = SUBSETS[name]
        below = hyponyms(wnid)
        classes = len(below & ilsvrc_classes())
        rows.append(
            [
                *(name, wnid, lemma(wnid), f"{len(below):,}", f"{classes}"),
                *(f"{classes * MEAN_IMAGES:,.0f}", f"{published:,}"),
            ]
        )
        if counted:
            rows[-1] += [f"{number:,}" for number in counted[name]]
    header = [
        *("subset", "WordNet id", "noun", "synsets", "classes", "images, expected"),
        "images, paper",
        *(["classes found", "images found"] if counted else []),
    ]
    caption = (
        "Subsets of ImageNet by the noun hierarchy of WordNet 3.0: the synsets below an id with "
        "itself, those among the 1,000 classes of ILSVRC-2012, which ImageNetSubset selects, and "
        "the images that so many classes have at the mean of 1,281 training images a class, "
        "beside the paper's number."
    )
    if counted:
        caption += f" Found: what is in {root}."
    else:
        caption += " The exact number needs ImageNet itself: set the option root to its folder."
    return [TableItem("imagenet_subsets", caption, [header], rows)]


def count_images(root: Path, subset: str) -> tuple[int, int]:
    """The classes and the images of a subset in a folder of ImageNet or Tiny ImageNet.

    Raises:
        DataNotFoundError: If the folder holds no class of the subset.
    """
    folders = ImageNetSubset(root, subset).class_folders()
    return len(folders), sum(len(found) for found in list_images(folders))
