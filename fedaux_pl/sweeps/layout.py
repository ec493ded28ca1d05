"""The tables and figures that a sweep file asks for, checked against its axes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedaux_pl.errors import ConfigurationError
from fedaux_pl.sweeps.yaml_nodes import check_names

TABLE = {"rows": True, "columns": False, "best": False}
"""The axes of a table, and whether they are required."""

FIGURES = {
    "lines": {"x": True, "series": True, "panels": False},
    "curves": {"series": True, "panels": False},
    "heatmap": {"x": True, "y": True, "panels": False},
}
"""The kinds of figures, their axes, and whether they are required."""

_RESERVED = ("cells", "report", "index")
_ONE_AXIS = ("x", "y", "series")  # the others are an axis or a list of axes


def default_tables(axes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One table with the first axis as rows and the others as columns."""
    first, *others = axes
    return [{"name": "accuracy", "rows": [first], "columns": others}]


def check_layout(
    tables: Sequence[dict[str, Any]],
    figures: Sequence[dict[str, Any]],
    axes: Mapping[str, Sequence[str]],
    points: Sequence[Mapping[str, str]],
) -> None:
    """Checks tables and figures.

    Args:
        tables: The entries of ``tables``.
        figures: The entries of ``figures``.
        axes: The labels of each axis.
        points: The coordinates of the cells, without seeds.

    Raises:
        ConfigurationError: If an entry has an unknown key or axis, lacks one, or puts different
            settings in the same place.
    """
    for kind, entries in (("tables", tables), ("figures", figures)):
        for entry in entries:
            name = entry.get("name")
            if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]+", name):
                raise ConfigurationError(
                    f"{kind}: each entry needs a name of letters, digits, '_', '.', '+' and '-', "
                    f"the stem of its files, but it is {name}"
                )
            if name in _RESERVED:
                raise ConfigurationError(f"{kind}: {name} is a file of every report: rename it")
            _check_entry(f"{kind}: {name}", entry, axes, points)
    names = [entry["name"] for entry in (*tables, *figures)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"tables and figures have the name {twice.pop()} twice")


def axes_of(entry: Mapping[str, Any]) -> list[str]:
    """All axes that a table or a figure shows.

    Example:
        >>> axes_of({"name": "accuracy", "rows": "method", "columns": ["C", "alpha"]})
        ['method', 'C', 'alpha']
    """
    roles = FIGURES[entry["kind"]] if "kind" in entry else TABLE
    given = [entry[role] for role in roles if role in entry]
    return [axis for part in given for axis in ([part] if isinstance(part, str) else part)]


def _check_entry(
    name: str,
    entry: Mapping[str, Any],
    axes: Mapping[str, Sequence[str]],
    points: Sequence[Mapping[str, str]],
) -> None:
    roles, more = TABLE, ["name", "caption"]
    if name.startswith("figures"):
        kind = str(entry.get("kind"))
        if kind not in FIGURES:
            raise ConfigurationError(
                f"{name}: kind must be one of {', '.join(FIGURES)}, but is {kind}"
            )
        roles, more = FIGURES[kind], [*more, "kind"]
        more += ["reference"] if "series" in roles else []
    check_names(name, entry, [*roles, *more])
    for role, is_required in roles.items():
        given = entry.get(role, [])
        if (role in _ONE_AXIS and not isinstance(given, str)) or (is_required and not given):
            raise ConfigurationError(f"{name} needs {role}: one of {', '.join(axes)}")
        check_names(f"{name}: {role}", [given] if isinstance(given, str) else given, axes)
    if "best" in entry and "columns" in entry:
        raise ConfigurationError(f"{name} has best and columns: remove one of them")
    if "reference" in entry:
        check_names(f"{name}: reference", [entry["reference"]], axes[entry["series"]])
    shown = axes_of(entry)
    places: dict[tuple[str, ...], Mapping[str, str]] = {}
    for point in points:
        if all(axis in point for axis in shown):
            first = places.setdefault(tuple(point[axis] for axis in shown), point)
            if first != point:
                other = next(axis for axis in point if first.get(axis) != point[axis])
                raise ConfigurationError(
                    f"{name} puts cells that differ in {other} in the same place: add {other} to "
                    f"{'panels' if 'kind' in entry else 'columns'}"
                )
