"""Draw accuracy against the seconds of the rounds, from the folders of finished runs.

python tools/seconds_figure.py docs/seconds.png "FedAUX=logs/runs/RUN" "FedAVG+P=logs/runs/OTHER"

Kernels are compiled and steps captured in the first round, which counts as long as the median of
the others.
"""

import csv
import sys
from itertools import accumulate
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from fedaux_pl.callbacks.figures.style import COLORS, INK, LEGEND, plain_axes


def read_curve(run: Path) -> tuple[list[float], list[float]]:
    """Return the seconds from the start to the end of each round, and its accuracy in %."""
    with open(run / "curve.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    stages = [name for name in rows[0] if name.startswith("seconds/")]
    rounds = [sum(float(row[name]) for name in stages) for row in rows]
    rounds[0] = median(rounds[1:])
    return list(accumulate(rounds)), [100 * float(row["accuracy"]) for row in rows]


def main(path: str, *runs: str) -> None:
    """Draw a line for each run."""
    figure = Figure(figsize=(9.1, 4.6), layout="tight")
    axes = figure.add_subplot()
    plain_axes(axes)
    axes.grid(axis="y", alpha=0.3)
    for color, run in zip(COLORS, runs, strict=False):
        label, _, folder = run.partition("=")
        seconds, accuracy = read_curve(Path(folder))
        print(
            f"{label}: {seconds[0]:.2f} s a round, {accuracy[-1]:.1f} % after {seconds[-1]:.1f} s"
        )
        axes.plot(seconds, accuracy, label=label, color=color, marker="o", markersize=4)
    axes.legend(loc="lower right", **LEGEND | {"fontsize": 12})
    axes.set_xlabel("seconds of the rounds")
    axes.set_ylabel("test accuracy in %")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 100)
    axes.set_title(
        "CIFAR-10 over 20 clients, alpha = 0.01, ResNet-8, one H200", loc="left", color=INK
    )
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
