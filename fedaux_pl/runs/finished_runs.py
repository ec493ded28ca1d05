"""Runs as their folders describe them: curve.csv and summary.json; imports no torch."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedaux_pl.errors import ConfigurationError, did_you_mean_path, first_line


@dataclass(frozen=True, eq=False)
class Run:
    """What a run has left in its folder; without arguments, a run before its first round."""

    name: str = ""  # its folder, as short as it is unique among the compared runs
    curve: pd.DataFrame = field(default_factory=pd.DataFrame)  # measurements by round
    summary: Mapping[str, Any] = field(default_factory=dict)  # summary.json

    def __repr__(self) -> str:
        accuracy = self.values("accuracy" if "accuracy" in self.curve else "val/accuracy")
        measured = "" if accuracy.empty else f", accuracy {accuracy.iloc[-1]:.1%}"
        return f"Run({self.name}: {self.method}, {self.rounds} rounds{measured})"

    def values(self, metric: str) -> pd.Series:
        """Return a metric by round, of the rounds in which it was measured."""
        return self.curve.get(metric, pd.Series(dtype=float)).dropna()

    def is_lower_better(self, metric: str) -> bool:
        """Return whether a lower value of a metric is better, also of one client's."""
        name = re.sub(r"^client_(\w+)/.*", r"\1", metric.removeprefix("val/"))
        return "loss" in metric or name in self.summary.get("lower_is_better", ())

    @property
    def rounds(self) -> int:
        """The last round; 0 before the first."""
        return 0 if self.curve.empty else int(self.curve.index[-1])

    @property
    def tested(self) -> dict[str, Any]:
        """The metrics on test data of the round that validation data chose; empty without."""
        tested = self.summary.get("test")
        return dict(tested) if isinstance(tested, Mapping) else {}

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by path, such as "data/alpha"."""
        flat = pd.json_normalize(self.summary.get("settings", {}), sep="/")
        return dict(*flat.to_dict("records"))

    @property
    def without_seeds(self) -> dict[str, Any]:
        """The settings and the number of rounds: the same in repetitions of a run."""
        settings = {k: v for k, v in self.settings.items() if k not in ("seed", "data/seed")}
        return settings | {"rounds": self.rounds}

    @property
    def data(self) -> str:
        """The private and the auxiliary data."""
        return str(self.summary.get("data", ""))

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary.get("method", ""))


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs at or below the paths, each of them once."""
    curves: dict[Path, Path] = {}
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("curve.csv"), key=_natural_key)
        if not files:
            missing = f"does not exist{did_you_mean_path(path)}"
            problem = "has no curve.csv below it" if path.is_dir() else missing
            raise ConfigurationError(
                f"{path} {problem}: give the folder of a run, a folder with runs, or a curve.csv"
            )
        curves |= {file.resolve(): file for file in files}
    names = short_names([str(file.parent) for file in curves], "/")
    return [_load(names[str(path.parent)], file) for path, file in curves.items()]


def _load(name: str, file: Path) -> Run:
    summary_file = file.with_name("summary.json")
    summary = {}
    try:
        curve = pd.read_csv(file, index_col="round", dtype=float)
        curve.index = curve.index.astype(int)
        if curve.empty:
            raise ValueError("it has no rows")
        if summary_file.is_file():
            summary = dict(json.loads(summary_file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is not the curve.csv of a run (a column 'round', and numbers), or its "
            f"summary.json is damaged ({first_line(error)}): give runs of fedaux-pl fit"
        ) from error
    return Run(name, curve, summary)


def group_by_settings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs of the same length and settings but seeds, by labels that tell groups apart."""
    groups: dict[str, list[Run]] = {}
    for run in runs:  # without settings, each run is a group of its own
        key = json.dumps(run.without_seeds, sort_keys=True) if run.settings else run.name
        groups.setdefault(key, []).append(run)
    labels = _labels([group[0] for group in groups.values()])
    return dict(zip(labels, groups.values(), strict=True))


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return the method of each run, with the settings that tell it from the others."""
    labels = pd.Series([run.method or run.name for run in runs])
    alphas = [f"alpha {run.settings.get('data/alpha')}" for run in runs]
    for texts in ([run.data for run in runs], alphas):
        if len(set(texts)) > 1:
            labels = labels.str.cat(texts, sep=", ").str.removesuffix(", ")
    settings = pd.DataFrame([_describe_settings(run) for run in runs])
    for _, twins in settings.groupby(labels.copy()):
        if len(twins) > 1:
            is_differing = twins.nunique(dropna=False) > 1
            for row, texts in twins.loc[:, is_differing].iterrows():
                differing = list(texts.dropna())
                is_short = 0 < len(differing) <= 2
                labels[row] += f", {', '.join(differing) if is_short else runs[row].name}"
    return list(labels)


def _describe_settings(run: Run) -> dict[str, str]:
    """Return each setting but checksums as text, such as "epsilon 0.5", by path."""
    texts = {}
    for path, value in run.without_seeds.items():
        if not path.startswith("data/contents/"):
            texts[path] = f"{path.rpartition('/')[2]} {value}"
    return texts


def short_names(names: Iterable[str], separator: str = ".") -> dict[str, str]:
    """Return the last parts of names, as few as tell all of them apart.

    Examples:
        >>> short_names(["method", "model.local.lr", "model.server.lr"])
        {'method': 'method', 'model.local.lr': 'local.lr', 'model.server.lr': 'server.lr'}
    """
    short = dict.fromkeys(names, "")
    for name in short:
        parts = name.split(separator)
        for count in range(1, len(parts) + 1):
            end = separator + separator.join(parts[-count:])
            if sum((separator + other).endswith(end) for other in short) == 1:
                break
        short[name] = end.removeprefix(separator)
    return short


def _natural_key(path: Path) -> list[tuple[str, int]]:
    """Sort version_10 after version_9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", str(path))]
