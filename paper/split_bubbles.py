"""Figures 6 and 8: which classes each client holds, at several alphas.

    python paper/split_bubbles.py fig6     # or fig8, or digits_fig6

The split of CIFAR-10's training labels over 20 clients, or of the quickstart's digits. It depends
on the numbers of samples of the classes, not on the images, so that nothing is loaded. The alphas
of Figure 6 are not in the paper's source; these are those of Lin et al. 2020, from whom the figure
is adapted.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedaux_pl import Digits, FederatedDataModule
from fedaux_pl.cli.report import publish
from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import TableItem

FIGURES = {
    "fig6": [0.01, 1, 100],
    "fig8": [0.01, 0.04, 0.16, 0.64, 2.56, 10.24],
    "digits_fig6": [0.01, 1, 100],
}
AREA = 150  # of the largest bubble, in square points


def split_counts(labels: np.ndarray, alpha: float, clients: int = 20, seed: int = 0) -> np.ndarray:
    """Return the samples of each class of each client (n, C), as fit splits them."""
    images = np.zeros((len(labels), 1, 1), np.uint8)  # a split depends on nothing else
    part = (images, labels)
    data = FederatedDataModule((part, part), num_clients=clients, alpha=alpha, seed=seed)
    data.setup()
    return data.class_counts()


def split_bubbles(labels: np.ndarray, alphas: list[float]) -> list[FigureItem | TableItem]:
    """Draw the number of samples of each class that each client holds, a panel for each alpha."""
    tables = [split_counts(labels, alpha) for alpha in alphas]
    largest = max(table.max() for table in tables)
    rows = -(-len(alphas) // 3)
    figure = Figure(figsize=(12, 0.9 + 2.6 * rows), layout="constrained")
    figure.suptitle("Which classes each client holds; area: the number of samples of a class")
    panels = figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False)
    for axes, table, alpha in zip(panels.flat, tables, alphas, strict=True):
        client, held = np.nonzero(table)
        axes.scatter(client, held, s=table[client, held] * AREA / largest, color="#0072B2")
        axes.set_title(rf"$\alpha$ = {alpha:g}", loc="left")
        axes.set(xticks=range(0, len(table), 5), yticks=range(table.shape[1]))
        axes.grid(color="#dfe3e8", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    panels[0, 0].invert_yaxis()
    for axes in panels[:, 0]:
        axes.set_ylabel("class")
    for axes in panels[-1]:
        axes.set_xlabel("client")
    shown = (
        panels[0, 0]
        .collections[0]
        .legend_elements("sizes", num=3, color="#0072B2", func=lambda s: s * largest / AREA)
    )
    figure.legend(*shown, title="samples", loc="outside right upper", frameon=False)
    caption = (
        f"The Dirichlet split of {len(labels):,} samples of {table.shape[1]} classes over "
        f"{len(table)} clients, as fit makes it with seed 0. The area of a bubble is the number "
        "of samples of a class that a client holds; all clients hold equally many. The smaller "
        "alpha, the fewer classes does a client hold."
    )
    about = (
        "Means over the clients: the share of a client's most frequent class, the number of "
        "classes that 90 % of its samples have, and the number of all its classes."
    )
    texts = []
    for table, alpha in zip(tables, alphas, strict=True):
        shares = -np.sort(-table / table.sum(axis=1, keepdims=True), axis=1)
        most = 1 + (shares.cumsum(axis=1) < 0.9).sum(axis=1).mean()
        held = (table > 0).sum(axis=1).mean()
        texts.append([f"{alpha:g}", f"{shares[:, 0].mean():.0%}", f"{most:.1f}", f"{held:.1f}"])
    header = ["alpha", "most frequent class", "classes of 90 %", "classes"]
    return [
        FigureItem("split_bubbles", caption, figure),
        TableItem("classes_of_clients", about, pd.DataFrame(texts, columns=header)),
    ]


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--output", type=Path, help="default: logs/reports/FIGURE")
    options = parser.parse_args()
    is_digits = options.figure == "digits_fig6"
    labels = Digits().train().targets.numpy() if is_digits else np.arange(10).repeat(5000)
    items = split_bubbles(labels, FIGURES[options.figure])
    publish(options.output or Path("logs/reports") / options.figure, title, items, note=note)
