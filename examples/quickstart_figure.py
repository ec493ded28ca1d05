"""Runs the quickstart with three methods and three seeds, and draws their accuracy by round.

    python examples/quickstart_figure.py

Takes about ten minutes on two CPU cores. Finished runs are reused: to draw the figure again takes
seconds. This is how ``docs/quickstart.png`` was made.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fedaux_pl.cli import main

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "logs" / "quickstart_figure"
SEEDS = (0, 1, 2)
# method: its config layer and its color (Okabe and Ito's palette, safe for color-blind readers)
METHODS = {
    "FedAUX, epsilon = 1": ("fedaux", "#0072B2"),
    "FedAVG+P": ("fedavg_p", "#D55E00"),
    "FedDF+P": ("feddf_p", "#009E73"),
}


def accuracies(method: str, seed: int) -> list[float]:
    """Test accuracy in % after each round; runs the federation if it has not been run yet."""
    folder = RUNS / f"{method}-{seed}"
    if not list(folder.glob("runs/*/curve.csv")):
        # the quickstart itself is FedAUX
        layer = [] if method == "fedaux" else ["--config", f"{ROOT}/configs/methods/{method}.yaml"]
        options = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
        status = main(["fit", "--config", f"{ROOT}/configs/quickstart.yaml", *layer, *options])
        if status:
            raise SystemExit(status)
    [curve] = folder.glob("runs/*/curve.csv")
    with curve.open() as file:
        return [100 * float(row["accuracy"]) for row in csv.DictReader(file)]


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    """Draws the mean over seeds of each method, with a band from the worst seed to the best."""
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=130, layout="constrained")
    for label, (_, color) in METHODS.items():
        values = curves[label]
        rounds = np.arange(1, values.shape[1] + 1)
        axes.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
        axes.plot(rounds, values.mean(0), color=color, lw=2)
        axes.annotate(
            label, (rounds[-1], values[:, -1].mean()), (6, 0), textcoords="offset points",
            va="center", color=color,
        )  # fmt: skip
    axes.set(xlim=(1, rounds[-1] + 3.2), ylim=(0, 100), xticks=rounds)
    axes.set_xlabel("communication round", loc="left")
    axes.set_ylabel("test accuracy in %")
    axes.set_title(
        "Quickstart: 20 clients, little more than one digit each (mean and range of 3 seeds)",
        loc="left", fontsize=10,
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines["bottom"].set_bounds(1, rounds[-1])
    axes.grid(axis="y", alpha=0.25)
    figure.savefig(path)


if __name__ == "__main__":
    measured = {
        label: np.array([accuracies(method, seed) for seed in SEEDS])
        for label, (method, _) in METHODS.items()
    }
    for label, values in measured.items():
        last = ", ".join(f"{value:.1f}" for value in values[:, -1])
        print(f"{label}: {last} % after the last round")
    draw(measured, ROOT / "docs" / "quickstart.png")
    print(f"Drawn to {ROOT / 'docs' / 'quickstart.png'}")
