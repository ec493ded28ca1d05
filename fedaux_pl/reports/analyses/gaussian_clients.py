"""Fig. 14 of the paper: relative scores of three Gaussian clients beside their true densities."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from fedaux_pl.callbacks.figures import style
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.reports.analyses.axes_grid import COLORS, MARKERS, frame, panel_grid, panel_title
from fedaux_pl.reports.items import FigureItem, Item, TableItem
from fedaux_pl.scoring import Budget, Identity, Logistic, Scoring, Sigmoid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS = 3
_RADIUS, _WIDTHS = 2.0, (1.1, 0.7)  # of the means; standard deviations across and towards 0
_CONSTANT = 3.0  # the constant feature, about as large as the norm of a sample
_HALF = 4.5  # the plane is [-4.5, 4.5]^2
_LAMBDAS = (0.1, 0.01, 0.001, 0.0001)  # of the table
_PIXELS = 200


def client_distribution(i: int) -> Any:
    """D_i: a Gaussian on a circle around 0, at one of three equally spaced directions."""
    angle = math.pi / 2 + 2 * math.pi * i / CLIENTS
    towards = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-towards[1], towards[0]])
    covariance = _WIDTHS[0] ** 2 * np.outer(across, across)
    covariance += _WIDTHS[1] ** 2 * np.outer(towards, towards)
    return multivariate_normal(_RADIUS * towards, covariance)


def features(points: Tensor, constant: bool = True) -> Tensor:
    """h_0: the coordinates and a constant, without which J has no intercept."""
    extra = torch.full((len(points), int(constant)), _CONSTANT, dtype=points.dtype)
    return torch.cat([points, extra], dim=1)


def relative_scores(
    clients: Sequence[Tensor], negatives: Tensor, points: Tensor, regularization: float
) -> Tensor:
    """s_i(x) / sum_j s_j(x) by the paper's scoring without noise, shape (K, N).

    Each client fits a logistic regression of its data against the negatives.

    Args:
        clients: The features of each client's data, (n_i, d).
        negatives: The features of the public negatives D^-, (m, d).
        points: The features to score, (N, d).
        regularization: lambda of the logistic regression.
    """
    scoring = Scoring(
        scorer=Logistic(regularization),
        feature_map=Identity(),
        calibration=Sigmoid(),
        norm_bound="negatives",
        budget=Budget(epsilon=None),
        shrink=False,
    )
    public_map = scoring.fit_map(negatives, negatives)
    heads = [
        scoring.release(i, own, negatives, public_map, noise_seed=0)
        for i, own in enumerate(clients)
    ]
    logits = [head.logits(points) for head in heads]
    scores = torch.stack([scoring.calibration.scores(x, reference=x) for x in logits])
    return scores / scores.sum(dim=0)


def true_weights(points: Tensor) -> Tensor:
    """D_i(x) / sum_j D_j(x), shape (K, N)."""
    logs = np.stack([client_distribution(i).logpdf(points.numpy()) for i in range(CLIENTS)])
    return torch.from_numpy(logs).softmax(dim=0)  # in logarithms: far away all densities are 0


def gaussian_clients(
    samples: int = 300, negatives: int = 1000, regularization: float = 1e-3, seed: int = 0
) -> list[Item]:
    """Draws s_i / sum s above D_i / sum D of three Gaussian clients, and measures the difference.

    Args:
        samples: The number of samples of each client.
        negatives: The number of public negatives, of a standard normal distribution.
        regularization: lambda of the logistic regressions that are drawn.
        seed: The seed of all samples.
    """
    if min(samples, negatives) < 1:
        raise ConfigurationError(
            f"samples and negatives must be at least 1, but are {samples} and {negatives}"
        )
    rng = np.random.default_rng(seed)
    clients = [
        torch.from_numpy(client_distribution(i).rvs(samples, random_state=rng).reshape(-1, 2))
        for i in range(CLIENTS)
    ]
    public = torch.from_numpy(rng.standard_normal((negatives, 2)))

    def weights(points: Tensor, strength: float, constant: bool = True) -> Tensor:
        own, against, at = (
            [features(x, constant) for x in parts] for parts in (clients, [public], [points])
        )
        return relative_scores(own, against[0], at[0], strength)

    line = np.linspace(-_HALF, _HALF, _PIXELS)
    plane = torch.from_numpy(np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2))
    figure = _draw(clients, public, [weights(plane, regularization), true_weights(plane)])

    held = torch.cat(clients)
    truth = true_weights(held)
    found = float((weights(held, regularization) - truth).abs().mean())
    uniform = float((1 / CLIENTS - truth).abs().mean())
    caption = (
        f"Left: {samples} samples of each of three Gaussian clients, and {negatives} public "
        "negatives. Right: the relative scores of the paper's logistic scoring without noise "
        f"(lambda = {regularization:g}) above the true relative densities; the ellipses hold 90 % "
        f"of each client's distribution. On the clients' samples the two differ by {found:.3f} on "
        f"average; equal weights of 1/{CLIENTS} would by {uniform:.3f}."
    )
    rows = [
        [f"{strength:g}"]
        + [
            f"{(weights(held, strength, constant) - truth).abs().mean():.3f}"
            for constant in (True, False)
        ]
        for strength in sorted({*_LAMBDAS, regularization}, reverse=True)
    ]
    about = (
        "Mean absolute difference of s_i / sum s and D_i / sum D on the clients' samples, by "
        f"lambda; that of equal weights is {uniform:.3f}. The figure has a constant feature beside "
        "the coordinates; without one the scoring of the paper's text has no intercept."
    )
    header = [["lambda", "with a constant feature", "without"]]
    return [
        FigureItem("gaussian_clients", caption, figure),
        TableItem("differences", about, header, rows),
    ]


def _draw(clients: Sequence[Tensor], public: Tensor, maps: Sequence[Tensor]) -> "Figure":
    panel, gap = 1.9, (0.14, 0.36)
    square = 2 * panel + gap[1]  # the panel at the left is as tall as both rows
    figure, grid = panel_grid(
        2,
        CLIENTS,
        panel=(panel, panel),
        gap=gap,
        margins=(square + 0.3, 0.75, 0.45),
        title="Scores of three Gaussian clients approximate their relative densities",
        note="Scores: logistic regression of a client's samples against public negatives, "
        "without noise. Ellipses: 90 % of a client's distribution",
    )
    wide, tall = figure.get_size_inches()
    first, last = grid[1][0].get_position(), grid[1][-1].get_position()
    height = square / tall
    left = first.x0 - (square + 0.3) / wide
    _samples(figure.add_axes((left, first.y0, square / wide, height)), clients, public)
    labels = (r"$s_{0}\;/\;\Sigma_j\,s_j$", r"$D_{0}\;/\;\Sigma_j\,D_j$")
    for row, values, label in zip(grid, maps, labels, strict=True):
        for i, axes in enumerate(row):
            image = axes.imshow(
                values[i].reshape(_PIXELS, _PIXELS),
                origin="lower",
                extent=(-_HALF, _HALF, -_HALF, _HALF),
                cmap="viridis",
                vmin=0,
                vmax=1,
            )
            _ellipse(axes, i, "white")
            frame(axes)
            panel_title(axes, label.replace("{0}", str(i + 1)))
    bar = figure.colorbar(
        image, figure.add_axes((last.x1 + 0.15 / wide, last.y0, 0.13 / wide, height))
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=style.SMALL_TICK_SIZE, colors=style.INK)
    return figure


def _samples(axes: "Axes", clients: Sequence[Tensor], public: Tensor) -> None:
    axes.scatter(
        public[:, 0], public[:, 1], s=5, color=style.NO_DATA, linewidths=0, label="public negatives"
    )
    for i, own in enumerate(clients):
        look: dict[str, Any] = {"color": COLORS[i], "marker": MARKERS[i], "linewidths": 0}
        axes.scatter(own[:, 0], own[:, 1], s=11, alpha=0.75, label=f"client {i + 1}", **look)
        _ellipse(axes, i, style.INK)
    frame(axes)
    axes.set(xlim=(-_HALF, _HALF), ylim=(-_HALF, _HALF))
    panel_title(axes, "Samples")
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(
        [*handles[1:], handles[0]],
        [*labels[1:], labels[0]],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=CLIENTS + 1,
        frameon=False,
        fontsize=style.SMALL_TICK_SIZE,
        labelcolor=style.INK,
        handletextpad=0.1,
        columnspacing=1.0,
    )
    for handle in legend.legend_handles:
        handle.set(alpha=1, sizes=[28])  # type: ignore[union-attr]


def _ellipse(axes: "Axes", i: int, color: str) -> None:
    """The ellipse that holds 90 % of D_i."""
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import Normal, Stroke

    distribution = client_distribution(i)
    x, y = distribution.mean
    radius = math.sqrt(-2 * math.log(0.1))  # in standard deviations, of a Gaussian in the plane
    across, towards = (2 * radius * width for width in _WIDTHS)
    angle = math.degrees(math.atan2(y, x))
    look: dict[str, Any] = {"fill": False, "edgecolor": color, "linewidth": 1.1}
    ellipse = axes.add_patch(Ellipse((x, y), towards, across, angle=angle, **look))
    if color == "white":  # also seen on bright colors
        ellipse.set_path_effects([Stroke(linewidth=2.4, foreground=style.INK), Normal()])
