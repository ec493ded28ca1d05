"""Fig. 2 of the paper: linear classifiers of three clients on Iris, averaged and weighted."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import gaussian_kde

from fedaux_pl.callbacks.figures import style
from fedaux_pl.functional import dirichlet_partition, soft_labels
from fedaux_pl.reports.analyses.axes_grid import COLORS, MARKERS, frame, panel_grid, panel_title
from fedaux_pl.reports.items import FigureItem, Item

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CLIENTS = 3
_XI = 1e-8  # the paper's: keeps the weights defined far away from all data
_PIXELS = 220  # of the background, in each direction
_MARGIN = 0.6  # cm around the data
_OTHER_SEEDS = range(10)


def load_iris() -> tuple[Floats, Integers, tuple[str, ...]]:
    """Loads the measurements (150, 4) in cm, the labels (150,) and the names of the species.

    Example:
        >>> measurements, labels, species = load_iris()
        >>> measurements[0].tolist(), species[labels[0]]
        ([5.1, 3.5, 1.4, 0.2], 'setosa')
    """
    asset = files("fedaux_pl.data.assets") / "iris.csv"
    with asset.open() as file:
        *rows, species = zip(*list(csv.reader(file))[1:], strict=True)
    names = tuple(dict.fromkeys(species))
    labels = np.array([names.index(name) for name in species])
    return np.array(rows, dtype=np.float64).T, labels, names


def principal_axes(values: Floats, count: int = 2) -> Floats:
    """Projects rows to their first principal components, whose largest loading is positive."""
    centered = values - values.mean(axis=0)
    axes = np.linalg.svd(centered, full_matrices=False)[2][:count]
    signs = np.sign(axes[np.arange(count), np.abs(axes).argmax(axis=1)])
    return np.asarray(centered @ (signs[:, None] * axes).T)


def fit_linear(points: Floats, labels: Integers, classes: int, regularization: float) -> Floats:
    """Fits softmax regression: the mean cross-entropy plus (lambda/2) |W|^2, by L-BFGS.

    Args:
        points: Shape (N, d).
        labels: Shape (N,), 0 ... classes - 1; classes without a point are allowed.
        classes: C.
        regularization: lambda, of the intercept too: a client of one class has none otherwise.

    Returns:
        W of shape (C, d + 1); the last column is the intercept.
    """
    rows, targets = _with_one(points), np.eye(classes)[labels]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weight = flat.reshape(classes, -1)
        logits = rows @ weight.T
        value = -(targets * log_softmax(logits, axis=1)).sum() / len(rows)
        gradient = (softmax(logits, axis=1) - targets).T @ rows / len(rows)
        penalty = 0.5 * regularization * (weight**2).sum()
        return float(value + penalty), (gradient + regularization * weight).ravel()

    start = np.zeros(classes * rows.shape[1])
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return np.asarray(result.x).reshape(classes, -1)


@dataclass(frozen=True)
class ToyEnsemble:
    """Linear classifiers of clients, each with a density of its data as certainty.

    Attributes:
        parts: The positions of each client's points.
        weights: The classifier of each client, see ``fit_linear``.
        densities: The Gaussian kernel density of each client's points.
    """

    parts: Sequence[Integers]
    weights: Sequence[Floats]
    densities: Sequence[gaussian_kde]

    @classmethod
    def fit(
        cls, points: Floats, labels: Integers, parts: Sequence[Integers], regularization: float
    ) -> "ToyEnsemble":
        """Fits the classifier and the density of each client to its own points alone."""
        classes = int(labels.max()) + 1
        return cls(
            parts,
            [fit_linear(points[own], labels[own], classes, regularization) for own in parts],
            [gaussian_kde(points[own].T) for own in parts],
        )

    def logits(self, points: Floats) -> Floats:
        """f_i(x), shape (K, N, C)."""
        return np.stack([_with_one(points) @ weight.T for weight in self.weights])

    def certainty(self, points: Floats) -> Floats:
        """s_i(x), shape (K, N)."""
        return np.stack([density(points.T) for density in self.densities])

    def accuracy(self, points: Floats, labels: Integers, weighted: bool) -> float:
        """The share of points that ``predict`` labels correctly."""
        return float((self.predict(points, weighted) == labels).mean())

    def predict(self, points: Floats, weighted: bool) -> Integers:
        """The classes of A_mean (eq. 2) or, weighted by the certainty, of A_s (eq. 3)."""
        scores = torch.from_numpy(self.certainty(points) + _XI) if weighted else None
        probabilities = soft_labels(torch.from_numpy(self.logits(points)), scores)
        return np.asarray(probabilities.argmax(dim=1).numpy())


def iris_ensemble(alpha: float = 0.1, seed: int = 0, regularization: float = 0.01) -> list[Item]:
    """Draws the classifiers of three clients on Iris, their mean and their weighted mean.

    Args:
        alpha: The concentration of the Dirichlet split over the clients.
        seed: The seed of the split.
        regularization: lambda of the clients' softmax regression.
    """
    measurements, labels, species = load_iris()
    points = principal_axes(measurements)

    def ensemble_of(seed: int) -> ToyEnsemble:
        split = dirichlet_partition(torch.from_numpy(labels), CLIENTS, alpha, seed)
        return ToyEnsemble.fit(points, labels, [part.numpy() for part in split], regularization)

    ensemble = ensemble_of(seed)
    parts = ensemble.parts
    figure, (panels,) = panel_grid(
        1,
        CLIENTS + 2,
        panel=(2.35, 2.35),
        gap=(0.2, 0.0),
        margins=(0.05, 0.05, 0.75),
        title="Three clients on Iris: mean and certainty-weighted ensemble",
        note="On two principal axes. Background: the predicted species; in the clients' panels "
        "its opacity is the client's certainty, a kernel density of its own data",
    )
    low, high = points.min(axis=0) - _MARGIN, points.max(axis=0) + _MARGIN
    x, y = (np.linspace(low[k], high[k], _PIXELS) for k in range(2))
    plane = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    extent = (low[0], high[0], low[1], high[1])

    own_classes, certainty = ensemble.logits(plane).argmax(axis=2), ensemble.certainty(plane)
    for i, axes in enumerate(panels[:CLIENTS]):
        opacity = 0.75 * np.sqrt(certainty[i] / certainty[i].max())  # the tails stay visible
        _background(axes, own_classes[i], opacity, extent)
        others = np.setdiff1d(np.arange(len(points)), parts[i])
        _flowers(axes, points, labels, others, color=style.NO_DATA, s=9, zorder=2)
        _flowers(axes, points, labels, parts[i])
        counts = np.bincount(labels[parts[i]], minlength=len(species))
        held = ", ".join(f"{n} {name}" for n, name in zip(counts, species, strict=True) if n)
        panel_title(axes, f"Client {i + 1}")
        axes.set_xlabel(held, fontsize=style.SMALL_TICK_SIZE, color=style.MUTED)
    accuracies = {}
    for axes, (name, weighted) in zip(
        panels[CLIENTS:], {"Mean": False, "Weighted mean": True}.items(), strict=True
    ):
        _background(axes, ensemble.predict(plane, weighted), np.full(len(plane), 0.4), extent)
        is_right = ensemble.predict(points, weighted) == labels
        accuracies[name] = float(is_right.mean())
        _flowers(axes, points, labels, np.arange(len(points)))
        _rings(axes, points[~is_right])
        panel_title(axes, f"{name}: {accuracies[name]:.1%}")
        wrong = f"{(~is_right).sum()} of {len(points)} wrong"
        axes.set_xlabel(wrong, fontsize=style.SMALL_TICK_SIZE, color=style.MUTED)
    for axes in panels:
        frame(axes)
        axes.set(xlim=extent[:2], ylim=extent[2:])
    _legend(figure, species)
    further = [ensemble_of(other) for other in _OTHER_SEEDS]
    typical = [
        np.mean([other.accuracy(points, labels, weighted) for other in further])
        for weighted in (False, True)
    ]
    caption = (
        "Linear classifiers of three clients that hold disjoint, non-iid parts of Fisher's Iris "
        f"data (Dirichlet split, alpha = {alpha:g}, seed {seed}), on the two principal axes. The "
        f"plain mean of the clients' logits is right on {accuracies['Mean']:.1%} of the 150 "
        "flowers, the mean weighted by the clients' certainty on "
        f"{accuracies['Weighted mean']:.1%}; both on the flowers that the clients have learned "
        f"from. The split is chosen to show the difference: over the seeds 0 to {len(further) - 1} "
        f"the means are {typical[0]:.1%} and {typical[1]:.1%}."
    )
    return [FigureItem("iris_ensemble", caption, figure)]


def _with_one(points: Floats) -> Floats:
    return np.column_stack([points, np.ones(len(points))])


def _background(
    axes: "Axes",
    classes: Integers,
    opacity: Floats,
    extent: tuple[float, float, float, float],
) -> None:
    from matplotlib.colors import to_rgb

    colors = np.array([to_rgb(color) for color in COLORS])[classes]
    image = np.column_stack([colors, opacity]).reshape(_PIXELS, _PIXELS, 4)
    axes.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="nearest")


def _flowers(
    axes: "Axes", points: Floats, labels: Integers, which: Integers, **changed: Any
) -> None:
    """Draws flowers, each with the marker and, unless changed, the color of its species."""
    for k, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=True)):
        own = which[labels[which] == k]
        look: dict[str, Any] = {"color": color, "s": 20, "zorder": 3}
        look |= {"edgecolors": "white", "linewidths": 0.5} | changed
        axes.scatter(points[own, 0], points[own, 1], marker=marker, **look)


def _rings(axes: "Axes", points: Floats) -> None:
    look: dict[str, Any] = {"facecolors": "none", "edgecolors": style.INK, "linewidths": 0.9}
    axes.scatter(points[:, 0], points[:, 1], s=52, zorder=4, **look)


def _legend(figure: Any, species: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linestyle": "", "markersize": 6.5, "markeredgecolor": "white"}
    handles = [
        Line2D([], [], color=color, marker=marker, label=f"Iris {name}", **look)
        for color, marker, name in zip(COLORS, MARKERS, species, strict=True)
    ]
    other: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4}
    handles.append(Line2D([], [], color=style.NO_DATA, label="a flower of another client", **other))
    ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": style.INK}
    handles.append(
        Line2D([], [], linestyle="", marker="o", markersize=8, label="wrong prediction", **ring)
    )
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=style.TICK_SIZE,
        labelcolor=style.INK,
        handletextpad=0.3,
        columnspacing=1.8,
    )
