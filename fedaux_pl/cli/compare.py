"""``fedaux-pl compare RUN RUN ...``: a table and the curves of finished or running runs.

It reads curve.csv and summary.json, and imports neither torch nor Lightning.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedaux_pl.cli.entry import Parser
from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.files import csv_text, write_atomically, write_text_atomically
from fedaux_pl.names import terminal_safe
from fedaux_pl.reports.formats import TableItem, to_text
from fedaux_pl.runs.finished_runs import Run, group_by_settings, load_runs

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def compare(args: Sequence[str]) -> pd.DataFrame:
    """Print a table of runs, write it with the curves to compare.csv and compare.png, return it."""
    parser = Parser("compare", "Compares runs: a table and curves.")
    add = parser.add_argument
    about = "the folder of a run, a folder with runs below it, or a curve.csv"
    add("runs", nargs="+", type=Path, metavar="RUN", help=about)
    about = "a column of curve.csv (default: accuracy, or val/accuracy if no run has it)"
    add("--metric", default=None, help=about)
    about = "the folder of compare.csv and compare.png (default: the current one)"
    add("--output", type=Path, default=Path(), metavar="FOLDER", help=about)
    options = parser.parse_args(list(args))
    runs = load_runs(options.runs)
    metric = options.metric or _default_metric(runs)
    measured = [run for run in runs if len(run.values(metric))]
    if not measured:
        raise ConfigurationError(_no_metric(runs, metric))
    table = pd.DataFrame([_row(run, metric) for run in runs], dtype=object)
    if any(run.tested for run in runs):
        _insert_tests(table, runs, metric.removeprefix("val/"))
    texts = table.apply(lambda column: column.map(lambda value: _text(column.name, value, metric)))
    print(to_text(TableItem("runs", "", texts), sys.maxsize))
    groups = group_by_settings(measured)
    for label, group in groups.items():
        if len(group) > 1:
            last = pd.Series([run.values(metric).iloc[-1] for run in group])
            mean, low, high = (_number(x, metric) for x in (last.mean(), last.min(), last.max()))
            print(
                f"{terminal_safe(label)}: last {metric} {mean}, the mean of {len(group)} runs "
                f"({low} to {high})"
            )
    for run in runs:
        if run not in measured:
            print(f"not in the curves: {terminal_safe(run.name)}, {_no_metric([run], metric)}")
    file = options.output / "compare.csv"
    picture = options.output / "compare.png"
    write_text_atomically(file, csv_text([table.columns, *table.to_numpy()]))
    figure = _draw(groups, metric)
    write_atomically(picture, lambda opened: figure.savefig(opened, format="png"))
    print(f"Written to {file} and {picture}")
    return table


def _default_metric(runs: Sequence[Run]) -> str:
    """Return the accuracy on test data, or on validation data if no run has the other one."""
    is_tested = any(len(run.values("accuracy")) for run in runs)
    is_validated = any(len(run.values("val/accuracy")) for run in runs)
    return "val/accuracy" if is_validated and not is_tested else "accuracy"


def _insert_tests(table: pd.DataFrame, runs: Sequence[Run], metric: str) -> None:
    """Add what the runs measured on test data: in the round that they chose, else in the last."""
    values = []
    rounds = []
    for run in runs:
        curve = run.values(metric)
        last = None if curve.empty else curve.iloc[-1]
        values.append(run.tested.get(metric) if run.tested else last)
        rounds.append(run.tested.get("round", None if curve.empty else curve.index[-1]))
    place = table.columns.get_loc("bytes")
    table.insert(place, f"test {metric}", pd.Series(values, dtype=object))
    table.insert(place + 1, "of round", pd.Series(rounds, dtype=object))


def _no_metric(runs: Sequence[Run], metric: str) -> str:
    """Say that runs have no such metric, and which one was probably meant."""
    has = sorted(set().union(*(run.curve.columns for run in runs)))
    other = metric.removeprefix("val/") if metric.startswith("val/") else f"val/{metric}"
    meant = did_you_mean(metric, has) or f"; it has {', '.join(has)}"
    if other in has:
        remedy = f"measured on other data and not mixed with it: add --metric {other}"
        meant = f"; it has {other}, {remedy}"
    return f"there is no {metric!r} in curve.csv{meant}"


def _row(run: Run, metric: str) -> dict[str, Any]:
    values = run.values(metric)
    best = values.min() if run.is_lower_better(metric) else values.max()
    alpha = run.settings.get("data/alpha")
    totals = run.curve.iloc[-1].filter(["bytes/up_total", "bytes/down_total"])
    measured_on = "validation" if metric.startswith("val/") else "test"
    return {
        "run": run.name,
        "method": run.method or None,
        "data": run.data or None,
        "alpha": "given" if alpha is None and run.data else alpha,
        "seed": run.settings.get("seed"),
        "rounds": run.rounds,
        f"last {metric}": None if values.empty else values.iloc[-1],
        f"best over rounds ({measured_on} data)": None if values.empty else best,
        "bytes": int(totals.sum()) if len(totals) == 2 else None,
    }


def _draw(groups: Mapping[str, Sequence[Run]], metric: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    scale, unit = (100, " in %") if "accuracy" in metric else (1, "")
    for i, (label, group) in enumerate(groups.items()):
        curves = scale * pd.concat([run.values(metric) for run in group], axis=1, join="inner")
        look: dict[str, Any] = {
            "color": _COLORS[i % len(_COLORS)],
            "linestyle": ("-", "--", ":")[i // len(_COLORS) % 3],
            "marker": "o" if len(curves) <= 20 else "",
        }
        if len(group) > 1:
            label += f" (mean and range of {len(group)} runs)"
            band = curves.min(axis=1), curves.max(axis=1)
            axes.fill_between(curves.index, *band, alpha=0.2, linewidth=0, color=look["color"])
        if not curves.empty:
            axes.plot(curves.mean(axis=1), markersize=4, label=label, **look)
    on = " on validation data" if metric.startswith("val/") else ""
    axes.set(xlabel="round", ylabel=metric.removeprefix("val/") + on + unit)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dfe3e8", linewidth=0.6)
    for text in axes.legend(frameon=False, fontsize=9).get_texts():
        text.set_text(terminal_safe(text.get_text()))
        text.set_parse_math(False)
    return figure


def _text(head: str, value: Any, metric: str) -> str:
    if value is None:
        return "-"
    if head == "bytes":
        return f"{value / 1e6:,.1f} MB"
    is_measured = head.startswith(("last ", "best ", "test "))
    return _number(value, metric) if is_measured else str(value)


def _number(value: float, metric: str) -> str:
    return f"{value:.1%}" if "accuracy" in metric else f"{value:.4g}"
