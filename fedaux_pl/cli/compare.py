"""``fedaux-pl compare RUN RUN ...``: a table and the curves of finished or running runs.

It reads curve.csv and summary.json, and imports neither torch nor Lightning.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaux_pl.cli.entry import Parser
from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.files import csv_text, write_atomically, write_text_atomically
from fedaux_pl.reports.formats import TableItem, to_text
from fedaux_pl.runs.finished_runs import Run, group_by_settings, load_runs

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_ABSENT = "-"


def compare(args: Sequence[str]) -> list[dict[str, Any]]:
    """Print a table of runs, write it with the curves to compare.csv and compare.png, return it."""
    parser = Parser("compare", "Compares runs: a table and curves.")
    add = parser.add_argument
    about = "the folder of a run, a folder with runs below it, or a curve.csv"
    add("runs", nargs="+", type=Path, metavar="RUN", help=about)
    add("--metric", default="accuracy", help="a column of curve.csv (default: accuracy)")
    about = "the folder of compare.csv and compare.png (default: the current one)"
    add("--output", type=Path, default=Path(), metavar="FOLDER", help=about)
    options = parser.parse_args(list(args))
    runs, metric = load_runs(options.runs), options.metric
    measured = [run for run in runs if run.values(metric)]
    if not measured:
        raise ConfigurationError(_no_metric(runs, metric))
    rows = [_row(run, metric) for run in runs]
    texts = [[_cell(head, value, metric) for head, value in row.items()] for row in rows]
    print(to_text(TableItem("runs", "", [list(rows[0])], texts), sys.maxsize))
    groups = group_by_settings(measured)
    for label, group in groups.items():
        if len(group) > 1:
            last = [list(run.values(metric).values())[-1] for run in group]
            mean, low, high = (_number(f(last), metric) for f in (statistics.mean, min, max))
            print(f"{label}: last {metric} {mean}, the mean of {len(group)} runs ({low} to {high})")
    for run in runs:
        if run not in measured:
            print(f"not in the curves: {run.name}, {_no_metric([run], metric)}")
    table, picture = options.output / "compare.csv", options.output / "compare.png"
    write_text_atomically(table, csv_text([rows[0], *(row.values() for row in rows)]))
    figure = _draw(groups, metric)
    write_atomically(picture, lambda file: figure.savefig(file, format="png"))
    print(f"Written to {table} and {picture}")
    return rows


def _no_metric(runs: Sequence[Run], metric: str) -> str:
    """Say that runs have no such metric, and which one was probably meant."""
    has = sorted({name for run in runs for entry in run.curve for name in entry} - {"round"})
    other = metric.removeprefix("val/") if metric.startswith("val/") else f"val/{metric}"
    meant = did_you_mean(metric, has) or f"; it has {', '.join(has)}"
    if other in has:
        remedy = f"measured on other data and not mixed with it: add --metric {other}"
        meant = f"; it has {other}, {remedy}"
    return f"there is no {metric!r} in curve.csv{meant}"


def _row(run: Run, metric: str) -> dict[str, Any]:
    values = list(run.values(metric).values())
    best = min if run.is_lower_better(metric) else max
    alpha, seed = run.settings.get("data/alpha"), run.settings.get("seed")
    total = [run.curve[-1].get(f"bytes/{way}_total") for way in ("up", "down")]
    measured_on = "validation" if metric.startswith("val/") else "test"
    return {
        "run": run.name,
        "method": run.method or _ABSENT,
        "data": run.data or _ABSENT,
        "alpha": ("given" if run.data else _ABSENT) if alpha is None else alpha,
        "seed": _ABSENT if seed is None else seed,
        "rounds": int(run.curve[-1]["round"]),
        f"last {metric}": values[-1] if values else None,
        f"best over rounds ({measured_on} data)": best(values) if values else None,
        "bytes": int(sum(total)) if None not in total else None,  # type: ignore[arg-type]
    }


def _draw(groups: Mapping[str, Sequence[Run]], metric: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    scale, unit = (100, " in %") if "accuracy" in metric else (1, "")
    for i, (label, group) in enumerate(groups.items()):
        curves = [run.values(metric) for run in group]
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        if not rounds:
            continue
        values = [[scale * curve[t] for curve in curves] for t in rounds]
        color, dashes = _COLORS[i % len(_COLORS)], ("-", "--", ":")[i // len(_COLORS) % 3]
        mark = "o" if len(rounds) <= 20 else ""
        many = f" (mean and range of {len(group)} runs)" if len(group) > 1 else ""
        means, label = [statistics.mean(column) for column in values], label + many
        axes.plot(rounds, means, dashes, color=color, marker=mark, markersize=4, label=label)
        if many:
            lows, highs = [min(c) for c in values], [max(c) for c in values]
            axes.fill_between(rounds, lows, highs, alpha=0.2, linewidth=0, color=color)
    on = " on validation data" if metric.startswith("val/") else ""
    axes.set(xlabel="round", ylabel=metric.removeprefix("val/") + on + unit)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dfe3e8", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _cell(head: str, value: Any, metric: str) -> str:
    if value is None:
        return _ABSENT
    if head == "bytes":
        return f"{value / 1e6:,.1f} MB"
    return _number(value, metric) if head.startswith(("last ", "best ")) else str(value)


def _number(value: float, metric: str) -> str:
    return f"{value:.1%}" if "accuracy" in metric else f"{value:.4g}"
