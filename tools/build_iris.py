"""Builds ``iris.csv`` from scikit-learn's copy of Fisher's Iris data.

Run as ``python tools/build_iris.py``; needs scikit-learn 0.20 or later, which the
package does not require: its copy has the values of Fisher's paper, unlike the file of UCI.
"""

import csv
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "fedaux_pl" / "data" / "assets"
COLUMNS = ("sepal_length", "sepal_width", "petal_length", "petal_width", "species")


def build(folder: Path) -> Path:
    """Writes ``iris.csv`` to a folder and returns its path."""
    from sklearn.datasets import load_iris  # type: ignore[import-untyped]

    iris = load_iris()
    path = folder / "iris.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for values, label in zip(iris.data.tolist(), iris.target, strict=True):
            table.writerow([*values, iris.target_names[label]])
    return path


if __name__ == "__main__":
    print(f"wrote {build(ASSETS)}")
