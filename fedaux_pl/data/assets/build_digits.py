"""Builds ``digits.npz`` from the copy of the UCI digits that comes with scikit-learn.

Run as ``python -m fedaux_pl.data.assets.build_digits``; needs scikit-learn, which the package
itself does not.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PARTS = ("private", "auxiliary", "private", "test", "private", "auxiliary")
NAMES = ("private", "test", "auxiliary")


def split(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Deals the images of each class, in their order, to the three parts by the cycle ``PARTS``.

    The images come writer after writer; dealing them in turn gives each part its share of every
    class and every writer.

    Args:
        labels: The class of each image.

    Returns:
        The part of each image, as an index into ``NAMES``.
    """
    parts = np.empty(len(labels), dtype=np.uint8)
    cycle = np.array([NAMES.index(name) for name in PARTS], dtype=np.uint8)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        parts[places] = cycle[np.arange(len(places)) % len(cycle)]
    return parts


def build(folder: Path) -> Path:
    """Writes the file.

    Args:
        folder: Where to write.

    Returns:
        The path of the file.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    path = folder / "digits.npz"
    np.savez_compressed(
        path,
        images=digits.images.astype(np.uint8),
        labels=digits.target.astype(np.uint8),
        part=split(digits.target),
    )
    return path


if __name__ == "__main__":
    print(f"wrote {build(Path(__file__).parent)}")
