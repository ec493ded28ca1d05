"""Figure 14: relative scores of three Gaussian clients above their true relative densities.

    python paper/gaussian_clients.py

The paper gives neither the Gaussians nor lambda. Here h_0(x) are the coordinates and a constant,
which is the intercept of the authors' code, regularized; the table shows what other lambdas do, and
no intercept. At the lambda of the paper's experiments, 0.1, the scores are close to equal weights.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.patheffects import Normal, Stroke
from scipy.stats import multivariate_normal
from torch import Tensor

from fedaux_pl.cli.report import publish
from fedaux_pl.reports.figures import FigureItem
from fedaux_pl.reports.formats import TableItem
from fedaux_pl.scoring import PaperScoring, Privacy, Step

COLORS, MARKERS = ("#0072B2", "#D55E00", "#009E73"), ("o", "s", "^")  # of Okabe and Ito
INK, GRAY = "#1f2933", "#c9ced6"
RADIUS, ACROSS, TOWARDS = 2.0, 1.1, 0.7  # of the means; standard deviations across and towards 0
CONSTANT = 3.0  # the constant feature, about as large as the norm of a sample
HALF, PIXELS = 4.5, 200  # the plane is [-4.5, 4.5]^2
LAMBDAS = (0.1, 0.01, 0.001, 0.0001)  # of the table


def client_distribution(i: int) -> Any:
    """Return D_i: a Gaussian on a circle around 0, at one of three equally spaced directions."""
    angle = math.pi / 2 + 2 * math.pi * i / 3
    towards = np.array([math.cos(angle), math.sin(angle)])
    across = np.array([-towards[1], towards[0]])
    covariance = ACROSS**2 * np.outer(across, across) + TOWARDS**2 * np.outer(towards, towards)
    return multivariate_normal(RADIUS * towards, covariance)


def true_weights(points: Tensor) -> Tensor:
    """Return D_i(x) / sum_j D_j(x), shape (K, N)."""
    logs = np.stack([client_distribution(i).logpdf(points.numpy()) for i in range(3)])
    return torch.from_numpy(logs).softmax(dim=0)  # in logarithms: far away all densities are 0


def features(points: Tensor, constant: bool = True) -> Tensor:
    """Return h_0: the coordinates and a constant, without which J has no intercept."""
    extra = torch.full((len(points), int(constant)), CONSTANT, dtype=points.dtype)
    return torch.cat([points, extra], dim=1)


def relative_scores(
    clients: list[Tensor], negatives: Tensor, points: Tensor, regularization: float
) -> Tensor:
    """Return s_i(x) / sum_j s_j(x) by the paper's scoring without noise, shape (K, N).

    Args:
        clients: The features of each client's data, (n_i, d).
        negatives: The features of the public negatives D^-, (m, d).
        points: The features to score, (N, d).
        regularization: lambda of the clients' logistic regressions.
    """
    scoring = PaperScoring(regularization).create(Privacy(epsilon=None))
    public_map = scoring.fit_map(negatives, negatives)
    scores = []
    for i, own in enumerate(clients):
        logits = Step(scoring).release(i, own, negatives, public_map, noise_seed=0).logits(points)
        scores.append(scoring.calibration.scores(logits, reference=logits))
    return torch.stack(scores) / torch.stack(scores).sum(dim=0)


def gaussian_clients(
    samples: int = 300, negatives: int = 1000, regularization: float = 1e-3, seed: int = 0
) -> list[FigureItem | TableItem]:
    """Draw s_i / sum s above D_i / sum D of three clients, and tabulate their difference."""
    rng = np.random.default_rng(seed)
    clients = [
        torch.from_numpy(client_distribution(i).rvs(samples, random_state=rng)) for i in range(3)
    ]
    public = torch.from_numpy(rng.standard_normal((negatives, 2)))

    def weights(points: Tensor, strength: float, constant: bool = True) -> Tensor:
        own = [features(client, constant) for client in clients]
        return relative_scores(
            own, features(public, constant), features(points, constant), strength
        )

    line = torch.linspace(-HALF, HALF, PIXELS, dtype=torch.float64)
    plane = torch.cartesian_prod(line, line).flip(1)
    figure = draw(clients, public, [weights(plane, regularization), true_weights(plane)])

    held = torch.cat(clients)
    truth = true_weights(held)
    found = (weights(held, regularization) - truth).abs().mean()
    uniform = (1 / 3 - truth).abs().mean()
    caption = (
        f"Left: {samples} samples of each of three Gaussian clients, and {negatives} public "
        "negatives. Right: the relative scores of the paper's logistic scoring without noise "
        f"(lambda = {regularization:g}) above the true relative densities; the ellipses hold 90 % "
        f"of each client's distribution. On the clients' samples the two differ by {found:.3f} on "
        f"average; equal weights of 1/3 would by {uniform:.3f}."
    )
    rows = [
        [f"{strength:g}"]
        + [f"{(weights(held, strength, c) - truth).abs().mean():.3f}" for c in (True, False)]
        for strength in sorted({*LAMBDAS, regularization}, reverse=True)
    ]
    about = (
        "Mean absolute difference of s_i / sum s and D_i / sum D on the clients' samples, by "
        f"lambda; that of equal weights is {uniform:.3f}. The figure has a constant feature "
        "beside the coordinates; without one the scoring of the paper's text has no intercept."
    )
    header = ["lambda", "with a constant feature", "without"]
    return [
        FigureItem("gaussian_clients", caption, figure),
        TableItem("differences", about, pd.DataFrame(rows, columns=header)),
    ]


def draw(clients: list[Tensor], public: Tensor, maps: list[Tensor]) -> Figure:
    """Draw the samples at the left, and a row of panels for each map of weights (K, N)."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    figure.suptitle("Scores of three Gaussian clients approximate their relative densities")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.45])
    axes = left.subplots()
    axes.scatter(*public.T, s=5, color=GRAY, label="public negatives")
    for i, own in enumerate(clients):
        look = {"color": COLORS[i], "marker": MARKERS[i], "linewidths": 0}
        axes.scatter(*own.T, s=11, alpha=0.75, label=f"client {i + 1}", **look)
        add_ellipse(axes, i, INK)
    axes.set(xticks=[], yticks=[], xlim=(-HALF, HALF), ylim=(-HALF, HALF), aspect="equal")
    axes.set_title("Samples", loc="left")
    left.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8, markerscale=1.5)
    grid = right.subplots(2, 3)
    for row, values, name in zip(grid, maps, "sD", strict=True):
        for i, axes in enumerate(row):
            image = axes.imshow(
                values[i].reshape(PIXELS, PIXELS),
                origin="lower",
                extent=(-HALF, HALF, -HALF, HALF),
                vmin=0,
                vmax=1,
            )
            add_ellipse(axes, i, "white")
            axes.set(xticks=[], yticks=[])
            axes.set_title(rf"${name}_{i + 1}\;/\;\Sigma_j\,{name}_j$", loc="left")
    right.colorbar(image, ax=grid)
    return figure


def add_ellipse(axes: Any, i: int, color: str) -> None:
    """Draw the ellipse that holds 90 % of D_i."""
    x, y = client_distribution(i).mean
    diameter = 2 * math.sqrt(
        -2 * math.log(0.1)
    )  # in standard deviations of a Gaussian in the plane
    angle = math.degrees(math.atan2(y, x))
    ellipse = Ellipse((x, y), diameter * TOWARDS, diameter * ACROSS, angle=angle, fill=False)
    ellipse.set(edgecolor=color, linewidth=1.1)
    if color == "white":  # also seen on bright colors
        ellipse.set_path_effects([Stroke(linewidth=2.4, foreground=INK), Normal()])
    axes.add_patch(ellipse)


if __name__ == "__main__":
    title, _, note = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--output", type=Path, default=Path("logs/reports/fig14"))
    parser.add_argument("--regularization", type=float, default=1e-3, help="lambda of the figure")
    parser.add_argument("--seed", type=int, default=0, help="of all samples")
    options = parser.parse_args()
    items = gaussian_clients(regularization=options.regularization, seed=options.seed)
    publish(options.output, title, items, note=note)
