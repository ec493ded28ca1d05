"""Draw the accuracy of every method at every silo, from the reports of silos/pacs and silos/office.

python tools/silo_figure.py FIGURE.png    # reads logs/reports/{pacs,office}/NAME.csv
"""

import csv
import sys

import matplotlib.pyplot as plt

TITLES = {"pacs": "PACS", "office": "Office-Caltech10"}
PREFIX = "client_accuracy/"


def main(path: str) -> None:
    """Draw a panel for each study: a dot for each silo, a bar for their mean."""
    figure, panels = plt.subplots(1, len(TITLES), figsize=(11, 7), sharey=True, layout="tight")
    for axes, (name, title) in zip(panels, TITLES.items(), strict=True):
        with open(f"logs/reports/{name}/{name}.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        values = {k: [float(row[k].split()[0]) for row in rows] for k in rows[0] if k != "method"}
        methods = [row["method"] for row in rows]
        axes.barh(methods, values["mean_client/accuracy"], color="lightgray", label="mean")
        for column in values:
            if column.startswith(PREFIX):
                label = column.removeprefix(PREFIX).replace("_", " ")
                axes.scatter(values[column], methods, s=25, label=label, zorder=2)
        axes.set(title=title, xlabel="test accuracy in %, mean of three seeds", xlim=(0, 100))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize="small")
    panels[0].invert_yaxis()  # shared
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1])
