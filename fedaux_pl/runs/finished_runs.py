"""Runs as their folders describe them: curve.csv and summary.json; imports no torch."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaux_pl.errors import ConfigurationError


@dataclass(frozen=True)
class Run:
    """What a run has left in its folder."""

    name: str  # its folder, as short as it is unique among the compared runs
    curve: list[dict[str, float]]  # the measurements of each round, by name
    summary: Mapping[str, Any]  # summary.json; empty if there is none

    def values(self, metric: str) -> dict[int, float]:
        """Return a metric by round, of the rounds in which it was measured."""
        return {int(entry["round"]): entry[metric] for entry in self.curve if metric in entry}

    def is_lower_better(self, metric: str) -> bool:
        """Return whether a lower value of a metric is better, also of one client's."""
        name = re.sub(r"^client_(\w+)/.*", r"\1", metric.removeprefix("val/"))
        return "loss" in metric or name in self.summary.get("lower_is_better", ())

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by path, such as "data/alpha"."""
        return _flatten(self.summary.get("settings", {}))

    @property
    def without_seeds(self) -> dict[str, Any]:
        """The settings and the number of rounds: the same in repetitions of a run."""
        settings = {k: v for k, v in self.settings.items() if k not in ("seed", "data/seed")}
        return settings | {"rounds": int(self.curve[-1]["round"])}

    @property
    def data(self) -> str:
        """The private and the auxiliary data."""
        names = [self.settings.get(f"data/{part}") for part in ("private", "auxiliary")]
        former = " + ".join(name for name in names if name)  # of runs that did not write the name
        return str(self.summary.get("data", former))

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary.get("method", ""))


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        path = prefix + name
        flat |= _flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return flat


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs at or below the paths, each of them once."""
    curves: dict[Path, Path] = {}
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob("curve.csv"), key=_natural_key)
        if not found:
            problem = "has no curve.csv below it" if path.is_dir() else "does not exist"
            raise ConfigurationError(
                f"{path} {problem}: give the folder of a run, a folder with runs, or a curve.csv"
            )
        curves |= {file.resolve(): file for file in found}
    names = short_names([str(file.parent) for file in curves], "/")
    return [_load(names[str(path.parent)], file) for path, file in curves.items()]


def _load(name: str, file: Path) -> Run:
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            curve = [
                {key: float(value) for key, value in row.items() if value}
                for row in csv.DictReader(opened)
            ]
        if not curve or any("round" not in entry for entry in curve):
            raise ValueError("it has no column 'round', or no rows")
        summary = file.with_name("summary.json")
        content = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
        if not isinstance(content, dict):
            raise ValueError("its summary.json is not an object")
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ConfigurationError(
            f"{file} is not the curve.csv of a run, or its summary.json is damaged ({error}): "
            "give runs of fedaux-pl fit"
        ) from error
    return Run(name, curve, content)


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
    labels = [run.method or run.name for run in runs]
    alphas = [f"alpha {run.settings.get('data/alpha')}" for run in runs]
    for described in ([run.data for run in runs], alphas):
        if len(set(described)) > 1:
            pairs = zip(labels, described, strict=True)
            labels = [", ".join(filter(None, pair)) for pair in pairs]
    twins = [[run for run, own in zip(runs, labels, strict=True) if own == one] for one in labels]
    told = zip(runs, labels, twins, strict=True)
    return [f"{label}, {_difference(run, own)}" if own[1:] else label for run, label, own in told]


def _difference(run: Run, twins: Sequence[Run]) -> str:
    """Return one or two settings that other runs do not have; else the name of the run."""
    differing = [
        f"{path.rsplit('/', 1)[-1]} {value}"
        for path, value in run.without_seeds.items()
        if any(twin.without_seeds.get(path) != value for twin in twins)
        and not path.startswith("data/contents/")  # checksums
    ]
    return ", ".join(differing) if 0 < len(differing) <= 2 else run.name


def short_names(names: Iterable[str], separator: str = ".") -> dict[str, str]:
    """Return the last parts of names, as few as tell all of them apart.

    Examples:
        >>> short_names(["method", "model.local.lr", "model.server.lr"])
        {'method': 'method', 'model.local.lr': 'local.lr', 'model.server.lr': 'server.lr'}
    """
    splits = {name: name.split(separator) for name in names}
    ends = {k: [separator.join(p[i:]) for i in range(len(p))][::-1] for k, p in splits.items()}
    counts = Counter(end for own in ends.values() for end in own)
    return {name: next((e for e in own if counts[e] == 1), name) for name, own in ends.items()}


def _natural_key(path: Path) -> list[tuple[str, int]]:
    """Sort version_10 after version_9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", str(path))]
