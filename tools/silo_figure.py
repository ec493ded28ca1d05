"""Draw the accuracy of every method: a bar for the mean over the silos, a dot for each silo.

To draw the finished sweeps silos/pacs and silos/office from their reports in logs/reports:
python tools/silo_figure.py FIGURE.png

To draw a CSV that has a row for each run:
python tools/silo_figure.py FIGURE.png --runs docs/results/data/silos.csv
"""

import argparse
import csv
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

TITLES = {"digits": "Digits", "pacs": "PACS", "office": "Office-Caltech10"}
SILOS = {
    "digits": ("plain", "inverted", "dark", "noisy"),
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "office": ("amazon", "caltech10", "dslr", "webcam"),
}


@dataclass
class Panel:
    """The accuracies in % of one data set: the mean and each silo, in the order of the methods."""

    methods: list[str]
    means: list[float]
    by_silo: Mapping[str, list[float]]


def read_report(name: str) -> Panel:
    """Read the table that `fedaux-pl report` has written; its cells are 'mean ± deviation'."""
    with open(f"logs/reports/{name}/{name}.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    values = {k: [float(row[k].split()[0]) for row in rows] for k in rows[0] if k != "method"}
    by_silo = {silo: values[f"client_accuracy/{silo}"] for silo in SILOS[name]}
    return Panel([row["method"] for row in rows], values["mean_client/accuracy"], by_silo)


def read_runs(path: str) -> dict[str, Panel]:
    """Average the runs of a CSV over their seeds, for each data set in it."""
    panels = {}
    for name, runs in pd.read_csv(path).groupby("set", sort=False):
        means = runs.groupby("method", sort=False).mean(numeric_only=True)
        by_silo = {silo: means[silo].tolist() for silo in SILOS[name]}
        panels[name] = Panel(means.index.tolist(), means["mean"].tolist(), by_silo)
    return panels


def draw(panels: Mapping[str, Panel], height: float) -> Figure:
    """Draw a panel for each data set; a method that a data set lacks has an empty row there."""
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(1.5 + 4.5 * len(panels), height), sharey=True, layout="tight"
    )
    methods = list(dict.fromkeys(m for panel in panels.values() for m in panel.methods))
    for axes, (name, panel) in zip(all_axes, panels.items(), strict=True):
        places = [methods.index(method) for method in panel.methods]
        axes.barh(places, panel.means, color="lightgray", label="mean")
        for silo, values in panel.by_silo.items():
            axes.scatter(
                values, places, s=25, label=silo.replace("_", " "), zorder=2, clip_on=False
            )  # a dot at 100 % is drawn whole
        axes.set(
            title=TITLES[name], xlabel="test accuracy in %, mean of three seeds", xlim=(0, 100)
        )
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.85 / height), ncols=3, fontsize="small"
        )
    all_axes[0].set_yticks(range(len(methods)), methods)
    all_axes[0].invert_yaxis()  # shared
    return figure


def main() -> None:
    """Draw the runs of a CSV, or the reports of silos/pacs and silos/office."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", help="PNG to write")
    parser.add_argument("--runs", metavar="FILE", help="CSV with one row for each run")
    arguments = parser.parse_args()
    if arguments.runs:
        figure = draw(read_runs(arguments.runs), height=4.5)
    else:
        figure = draw({name: read_report(name) for name in ("pacs", "office")}, height=7)
    figure.savefig(arguments.figure, dpi=120)


if __name__ == "__main__":
    main()
