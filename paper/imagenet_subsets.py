"""Table 6: the subsets of ImageNet, their WordNet ids and sizes.

    python paper/imagenet_subsets.py [--root data/imagenet]

WordNet's hierarchy and the list of ImageNet's classes are in the repository, the images are not:
with --root the table also counts them. The paper asked ImageNet's web service for the hierarchy,
which is gone.
"""

import argparse
from pathlib import Path

import pandas as pd

from fedaux_pl.cli.report import publish
from fedaux_pl.data.image_files import list_images
from fedaux_pl.data.sources.imagenet_subset import SUBSETS, ImageNetSubset, hyponyms, lemma
from fedaux_pl.reports.formats import TableItem

PUBLISHED = {
    "Devices": 165_747,
    "Birds": 76_541,
    "Animals": 510_530,
    "Dogs": 147_873,
    "Invertebrates": 79_300,
    "Structures": 74_400,
}
MEAN_IMAGES = (
    1_281_167 / 1000
)  # training images of a class of ILSVRC-2012; a class has 732 to 1,300


def ilsvrc_classes() -> set[str]:
    """Return the WordNet ids of the 1,000 classes of ILSVRC-2012."""
    lines = Path(__file__).with_name("ilsvrc2012_synsets.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def count_images(root: Path, subset: str) -> tuple[int, int]:
    """Return the classes and the images of a subset in a folder of ImageNet or Tiny ImageNet."""
    folders = ImageNetSubset(root, subset).class_folders()
    return len(folders), sum(len(found) for found in list_images(folders))


def imagenet_subsets(root: Path | None = None) -> TableItem:
    """List the classes that WordNet puts below each id; count the images in ``root``."""
    rows = []
    for name, published in PUBLISHED.items():
        below = hyponyms(SUBSETS[name])
        classes = len(below & ilsvrc_classes())
        numbers = [len(below), classes, round(classes * MEAN_IMAGES), published]
        numbers += [] if root is None else count_images(root, name)
        rows.append([name, SUBSETS[name], lemma(SUBSETS[name]), *(f"{n:,}" for n in numbers)])
    header = [
        "subset",
        "WordNet id",
        "noun",
        "synsets",
        "classes",
        "images, expected",
        "images, paper",
    ]
    header += [] if root is None else ["classes found", "images found"]
    caption = (
        "Subsets of ImageNet by the noun hierarchy of WordNet 3.0: the synsets below an id with "
        "itself, those among the 1,000 classes of ILSVRC-2012, which ImageNetSubset selects, and "
        "the images that so many classes have at the mean of 1,281 training images a class, "
        "beside the paper's number. "
    )
    caption += (
        "The exact number needs ImageNet: give --root." if root is None else f"Found: in {root}."
    )
    return TableItem("imagenet_subsets", caption, pd.DataFrame(rows, columns=header))


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--output", type=Path, default=Path("logs/reports/table6"))
    parser.add_argument("--root", type=Path, help="the folder of ImageNet or Tiny ImageNet")
    options = parser.parse_args()
    publish(options.output, title, [imagenet_subsets(options.root)], note=note)
