"""Figure 2: linear classifiers of three clients on Iris, their mean and their weighted mean.

    python paper/iris_ensemble.py

The paper does not say how it splits the data. This split resembles its figure: one client holds a
single species and the others little of a second one.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import gaussian_kde

from fedaux_pl.cli.report import publish
from fedaux_pl.functional import dirichlet_partition, soft_labels
from fedaux_pl.reports.figures import FigureItem

COLORS, MARKERS = ("#0072B2", "#D55E00", "#009E73"), ("o", "s", "^")  # of Okabe and Ito
INK, GRAY = "#1f2933", "#c9ced6"
XI = 1e-8  # the paper's: keeps the weights defined far away from all data
PIXELS = 220  # of the background, in each direction


def load_iris() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the measurements (150, 4) in cm, the labels (150,) and the names of the species."""
    rows = np.genfromtxt(Path(__file__).with_name("iris.csv"), str, delimiter=",", skip_header=1)
    names, labels = np.unique(rows[:, 4], return_inverse=True)
    return rows[:, :4].astype(float), labels, names.tolist()


def principal_axes(values: np.ndarray, count: int = 2) -> np.ndarray:
    """Project rows to their first principal components, whose largest loading is positive."""
    centered = values - values.mean(axis=0)
    axes = np.linalg.svd(centered, full_matrices=False)[2][:count]
    signs = np.sign(axes[np.arange(count), np.abs(axes).argmax(axis=1)])
    return centered @ (signs[:, None] * axes).T


def with_one(points: np.ndarray) -> np.ndarray:
    """Append a constant 1 to each row."""
    return np.column_stack([points, np.ones(len(points))])


def fit_linear(points: np.ndarray, labels: np.ndarray, classes: int, strength: float) -> np.ndarray:
    """Return W (C, d + 1) of the mean cross-entropy plus (strength/2) |W|^2.

    The last column is the intercept; regularized, so that a client of one class has one.
    """
    rows, targets = with_one(points), np.eye(classes)[labels]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight = flat.reshape(classes, -1)
        logits = rows @ weight.T
        value = -(targets * log_softmax(logits, axis=1)).sum() / len(rows)
        gradient = (softmax(logits, axis=1) - targets).T @ rows / len(rows) + strength * weight
        return value + 0.5 * strength * (weight**2).sum(), gradient.ravel()

    start = np.zeros(classes * rows.shape[1])
    return minimize(loss, start, jac=True, options={"maxiter": 1000}, method="L-BFGS-B").x.reshape(
        classes, -1
    )


class ToyEnsemble:
    """Linear classifiers of clients, each with a kernel density of its own points as certainty."""

    def __init__(
        self, points: np.ndarray, labels: np.ndarray, parts: list[np.ndarray], strength: float
    ) -> None:
        classes = labels.max() + 1
        self.parts = parts
        self.weights = [fit_linear(points[own], labels[own], classes, strength) for own in parts]
        self.densities = [gaussian_kde(points[own].T) for own in parts]

    def logits(self, points: np.ndarray) -> np.ndarray:
        """Return f_i(x), shape (K, N, C)."""
        return np.stack([with_one(points) @ weight.T for weight in self.weights])

    def certainty(self, points: np.ndarray) -> np.ndarray:
        """Return s_i(x), shape (K, N)."""
        return np.stack([density(points.T) for density in self.densities])

    def predict(self, points: np.ndarray, weighted: bool) -> np.ndarray:
        """Return the classes of A_mean (eq. 2) or, weighted by the certainty, of A_s (eq. 3)."""
        scores = torch.from_numpy(self.certainty(points) + XI) if weighted else None
        return soft_labels(torch.from_numpy(self.logits(points)), scores).argmax(dim=1).numpy()


def iris_ensemble(alpha: float = 0.1, seed: int = 5, strength: float = 0.01) -> FigureItem:
    """Draw the classifiers of three clients, their mean and their weighted mean."""
    measurements, labels, species = load_iris()
    points = principal_axes(measurements)

    def ensemble_of(seed: int) -> ToyEnsemble:
        parts = dirichlet_partition(torch.from_numpy(labels), 3, alpha, seed)
        return ToyEnsemble(points, labels, [part.numpy() for part in parts], strength)

    ensemble = ensemble_of(seed)
    low, high = points.min(axis=0) - 0.6, points.max(axis=0) + 0.6
    extent = (low[0], high[0], low[1], high[1])
    sides = (np.linspace(low[k], high[k], PIXELS) for k in range(2))
    plane = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    figure.suptitle(
        "Three clients on Iris: mean and certainty-weighted ensemble\nTwo principal axes; "
        "background: predicted species, in the clients' panels as opaque as the client is certain",
        fontsize=11,
    )
    panels = figure.subplots(1, 5)

    def draw(axes: Any, classes: np.ndarray, opacity: Any, own: np.ndarray, title: str) -> None:
        colors = np.array([to_rgb(color) for color in COLORS])[classes]
        image = np.column_stack([colors, np.broadcast_to(opacity, len(plane))])
        axes.imshow(image.reshape(PIXELS, PIXELS, 4), origin="lower", extent=extent, aspect="auto")
        for k, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=True)):
            for which, look in ((~own, {"color": GRAY, "s": 9}), (own, {"color": color, "s": 20})):
                x, y = points[which & (labels == k)].T
                axes.scatter(x, y, marker=marker, edgecolors="white", linewidths=0.5, **look)
        axes.set_title(title, loc="left")
        axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])

    certainty = ensemble.certainty(plane)
    for i, classes in enumerate(ensemble.logits(plane).argmax(axis=2)):
        opacity = 0.75 * np.sqrt(certainty[i] / certainty[i].max())  # the tails stay visible
        own = np.isin(np.arange(len(points)), ensemble.parts[i])
        draw(panels[i], classes, opacity, own, f"Client {i + 1}")
        counts = np.bincount(labels[own], minlength=3)
        held = [f"{n} {name}" for n, name in zip(counts, species, strict=True) if n]
        panels[i].set_xlabel(", ".join(held))
    accuracies = []
    for axes, weighted, name in zip(
        panels[3:], (False, True), ("Mean", "Weighted mean"), strict=True
    ):
        is_wrong = ensemble.predict(points, weighted) != labels
        accuracies.append(1 - is_wrong.mean())
        everything = np.full(len(points), True)
        title = f"{name}: {accuracies[-1]:.1%}"
        draw(axes, ensemble.predict(plane, weighted), 0.4, everything, title)
        axes.scatter(*points[is_wrong].T, s=52, facecolors="none", edgecolors=INK, linewidths=0.9)
        axes.set_xlabel(f"{is_wrong.sum()} of {len(points)} wrong")
    looks = [
        *(
            {"color": color, "marker": marker}
            for color, marker in zip(COLORS, MARKERS, strict=True)
        ),
        {"color": GRAY, "marker": "o", "markersize": 4},
        {"markerfacecolor": "none", "markeredgecolor": INK, "marker": "o", "markersize": 8},
    ]
    texts = [
        *(f"Iris {name}" for name in species),
        "a flower of another client",
        "wrong prediction",
    ]
    handles = [Line2D([], [], linestyle="", **look) for look in looks]
    figure.legend(handles, texts, loc="outside lower center", ncols=5, frameon=False)

    others = [ensemble_of(other) for other in range(10)]
    typical = [
        np.mean([(other.predict(points, weighted) == labels).mean() for other in others])
        for weighted in (False, True)
    ]
    caption = (
        "Linear classifiers of three clients that hold disjoint, non-iid parts of Fisher's Iris "
        f"data (Dirichlet split, alpha = {alpha:g}, seed {seed}). The mean of the clients' logits "
        f"is right on {accuracies[0]:.1%} of the 150 flowers, the mean weighted by their "
        f"certainty on {accuracies[1]:.1%}; both on the flowers that the clients have learned "
        "from. The split is chosen to show the difference: over the seeds 0 to 9 the means are "
        f"{typical[0]:.1%} and {typical[1]:.1%}."
    )
    return FigureItem("iris_ensemble", caption, figure)


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--output", type=Path, default=Path("logs/reports/fig2"))
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet split")
    parser.add_argument("--seed", type=int, default=5, help="of the split")
    options = parser.parse_args()
    item = iris_ensemble(options.alpha, options.seed)
    publish(options.output, title, [item], note=note)
