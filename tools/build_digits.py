"""Builds ``digits.npz`` from scikit-learn's copy of the UCI digits.

Run as ``python tools/build_digits.py``; needs scikit-learn, which the package does
not require.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PARTS = ("private", "auxiliary", "private", "test", "private", "auxiliary")
ASSETS = Path(__file__).parents[1] / "fedaux_pl" / "data" / "assets"
NAMES = ("private", "test", "auxiliary")


def split(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Assigns the images of each class, in order, to the parts in the cycle ``PARTS``.

    The file is sorted by writer, so that each part has images of every class and writer. Returns
    the part of each image as an index into ``NAMES``.
    """
    parts = np.empty(len(labels), dtype=np.uint8)
    cycle = np.array([NAMES.index(name) for name in PARTS], dtype=np.uint8)
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        parts[positions] = cycle[np.arange(len(positions)) % len(cycle)]
    return parts


def build(folder: Path) -> Path:
    """Writes ``digits.npz`` to a folder and returns its path."""
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
    print(f"wrote {build(ASSETS)}")
