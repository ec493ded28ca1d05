"""Draw accuracy by alpha from the table of the vote in docs/private_results.md.

python tools/alpha_figure.py docs/alpha.png
"""

import re
import sys
from pathlib import Path

from matplotlib.figure import Figure

from fedaux_pl.callbacks.figures.style import COLORS, INK, LEGEND, plain_axes

PAGE = Path(__file__).parents[1] / "docs" / "private_results.md"
LINES = {  # first cell of a row: its label
    "statistics by secure sums at (1, 10⁻⁵), `vote`": "FedAUX, vote of the clients",
    "the same, λ = 1, nothing held out": "FedAUX, nothing held out",
    "FedAVG+P": "FedAVG+P",
    "FedDF+P": "FedDF+P",
}


def read_table(page: str) -> tuple[list[float], dict[str, list[tuple[float, float]]]]:
    """Return the alphas and, by the first cell, mean and standard deviation at each."""
    section = page.partition("### The vote of the clients")[2].partition("\n### ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    alphas = [float(cell.removeprefix("alpha = ")) for cell in rows[0] if cell[-1:].isdigit()]
    values = {}
    for name, *cells in rows[2:]:
        if name in LINES:
            numbers = [re.findall(r"[\d.]+", cell) for cell in cells]
            values[name] = [(float(mean), float(*spread or "0")) for mean, *spread in numbers]
    return alphas, values


def main(path: str) -> None:
    """Draw a line for each method."""
    alphas, values = read_table(PAGE.read_text(encoding="utf-8"))
    figure = Figure(figsize=(9.1, 4.6), layout="tight")
    axes = figure.add_subplot()
    plain_axes(axes)
    axes.grid(axis="y", alpha=0.3)
    places = range(len(alphas))
    for color, (name, label) in zip(COLORS, LINES.items(), strict=False):
        means, spreads = zip(*values[name], strict=True)
        style = {"color": color, "marker": "o", "linewidth": 2.5, "capsize": 4}
        axes.errorbar(places, means, spreads, label=label, **style)
    axes.legend(loc="lower right", **LEGEND | {"fontsize": 12})
    axes.set_xticks(places, [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("alpha: from one class a client to all classes alike")
    axes.set_ylabel("test accuracy in %, round 20")
    axes.set_ylim(0, 100)
    axes.set_title(
        "CIFAR-10 over 20 clients, ResNet-8 (mean and spread of three seeds; FedDF+P: one)",
        loc="left",
        color=INK,
    )
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main(sys.argv[1])
