"""The file of a sweep: axes whose values add config layers and options to runs of ``fit``."""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fedaux_pl.errors import ConfigurationError, did_you_mean, first_line
from fedaux_pl.runs.refuse_removed import explain
from fedaux_pl.runs.removed import REMOVED
from fedaux_pl.sweeps.cells import Cell

FOLDER = Path(__file__).parents[1] / "configs"
AxisLabels = Mapping[str, Sequence[str]]
"""The labels of each axis."""
_METRICS = ("best", "last")
_SCRIPTS = {
    "fig2": "iris_ensemble.py",
    "fig14": "gaussian_clients.py",
    "table4": "method_costs.py",
    "table6": "imagenet_subsets.py",
    **{f: f"split_bubbles.py {f}" for f in ("fig6", "fig8", "digits_fig6")},
    **{f: f"similar_images.py {f}" for f in ("fig15", "fig16", "digits_fig15", "digits_fig16")},
}  # of paper/ in the repository; they need no sweep
_KEYS = (
    "title",
    "note",
    "base",
    "seeds",
    "metric",
    "axes",
    "grids",
    "where",
    "tables",
    "figures",
    "published",
)
# The axes that tables and kinds of figures show, and whether each is required.
_TABLE = {"rows": True, "columns": False, "best": False}
_FIGURES = {
    "lines": {"x": True, "series": True, "panels": False},
    "curves": {"series": True, "panels": False},
    "heatmap": {"x": True, "y": True, "panels": False},
}
_ONE_AXIS = ("x", "y", "series")  # the others are an axis or a list of axes


@dataclass(frozen=True)
class Sweep:
    """A sweep: its cells, and how a report shows them."""

    name: str  # the stem of the file
    title: str
    note: str
    metric: str  # over the rounds: best, last, or of another column of curve.csv, as in "last f1"
    axes: AxisLabels  # in the order of the file
    cells: Sequence[Cell]
    tables: Sequence[Mapping[str, Any]]  # as in the file, or one with the first axis as rows
    figures: Sequence[Mapping[str, Any]]
    published: Mapping[str, Any]  # of a paper: source, axes, and values by labels of these axes

    def published_value(self, coordinates: Mapping[str, str]) -> str:
        """Return the published number of a cell as it is written; empty if there is none."""
        value: Any = self.published.get("values", "")
        for axis in as_list(self.published.get("axes", ())):
            value = value.get(coordinates.get(axis)) or {}
        return value or ""


class _Loader(yaml.BaseLoader):  # type: ignore[misc]
    """Reads scalars as text: a number keeps the spelling that its author gave it."""

    def construct_scalar(self, node: Any) -> str:
        return str(node.value) or ("" if node.style else "null")

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _as_text(self.construct_object(key_node, deep=True))
            _require(key not in mapping, f"it has {key} twice: remove one of them")
            mapping[key] = self.construct_object(value_node, deep)
        return mapping


def read_sweep(
    file: str | Path,
    extra: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    select: AxisLabels | None = None,
) -> Sweep:
    """Read the file of a sweep, given by its path or as the name of a packaged one.

    ``extra`` are arguments of ``fit`` that all cells get after their own, ``seeds`` replace those
    in the file, ``select`` has the wanted labels of some axes; cells without such an axis stay.
    """
    path = find_sweep(file)
    try:
        parts = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - only text
        if not parts:
            raise ConfigurationError("it is empty: it must hold at least title and axes")
        _check_names("an entry", _typed(parts, dict, "the file"), _KEYS)
        sweep = _read(path.stem, parts, *_expand(parts, seeds, tuple(extra)))
        _check_layout(sweep)
        if "published" in parts:
            _check_published(sweep)
        return _select(sweep, select or {})
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or first_line(error)
        raise ConfigurationError(f"{file} is not valid YAML: {problem}{place}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def find_sweep(file: str | Path) -> Path:
    """Return the path of a sweep file, given by path or by the name of a packaged one."""
    if Path(file).is_file():
        return Path(file)
    name = str(file).removeprefix("configs/").removesuffix(".yaml")
    packaged = FOLDER / f"{name}.yaml"
    if packaged.is_file():
        return packaged
    script = _SCRIPTS.get(name.removeprefix("paper/"))
    if script is not None:
        raise ConfigurationError(
            f"{file} needs no sweep: run python paper/{script} in a clone of the repository"
        )
    if name in REMOVED:
        raise ConfigurationError(explain(name))
    files = [*FOLDER.glob("paper/*.yaml"), *FOLDER.glob("silos/*.yaml")]
    names = sorted(f"{path.parent.name}/{path.stem}" for path in files)
    raise ConfigurationError(
        f"there is no sweep file {file}: give a YAML file, or one of {', '.join(names)}"
        + did_you_mean(name, names)
    )


def split_metric(metric: str) -> tuple[str, str]:
    """Return which round counts, "best" or "last", and the column of curve.csv.

    Examples:
        >>> split_metric("best"), split_metric("last worst_client/f1")
        (('best', 'accuracy'), ('last', 'worst_client/f1'))
    """
    over, _, column = metric.partition(" ")
    return over, column.strip() or "accuracy"


def check_metrics(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Raise a ConfigurationError if a resolved cell does not measure a metric of the sweep."""
    columns = [split_metric(sweep.metric)[1]]
    for table in sweep.tables:
        columns += as_list(table.get("metrics", ()))
    for column, cell in itertools.product(columns, cells):
        metric = re.sub(r"^(?:(?:mean|worst)_client/(\w+)|client_(\w+)/.+)$", r"\1\2", column)
        added = cell.config["model"].get("metrics") or ()
        known = ["accuracy", *(name.rpartition(".")[2] for name in added)]
        if metric not in known:
            problem = f"does not measure {column}{did_you_mean(metric, known)}"
            raise ConfigurationError(f"the cell {cell.name} {problem}: add it to model.metrics")


def as_list(axes: str | Sequence[str]) -> list[str]:
    """Return one axis or several of a table or figure as a list."""
    return [axes] if isinstance(axes, str) else list(axes)


def _read(name: str, parts: Any, axes: AxisLabels, cells: list[Cell]) -> Sweep:
    _require("title" in parts, "title is missing: say in one line what the sweep measures")
    metric = _as_text(parts.get("metric", "best"))
    wanted = "best or last, followed by a metric other than accuracy, as in last f1"
    _require(split_metric(metric)[0] in _METRICS, f"metric: got {metric}; expected {wanted}")
    first, *others = axes
    default = [{"name": "accuracy", "rows": [first], "columns": others}]
    return Sweep(
        name,
        title=_as_text(parts["title"]),
        note=_as_text(parts.get("note", "")),
        metric=metric,
        axes=axes,
        cells=cells,
        tables=_typed(parts.get("tables", default), list, "tables"),
        figures=_typed(parts.get("figures", []), list, "figures"),
        published=parts.get("published", {}),
    )


def _select(sweep: Sweep, select: AxisLabels) -> Sweep:
    axes = dict(sweep.axes)
    cells = sweep.cells
    for axis, labels in select.items():
        _check_names("the axis of select", [axis], axes)
        _check_names(f"select: {axis}", labels, axes[axis])
        axes[axis] = tuple(label for label in axes[axis] if label in labels)
        cells = [cell for cell in cells if cell.coordinates.get(axis, labels[0]) in labels]
    _require(cells, "select leaves no cells: choose other labels")
    return replace(sweep, axes=axes, cells=cells)


def _expand(
    parts: Mapping[str, Any], seeds: Sequence[int] | None, extra: tuple[str, ...]
) -> tuple[AxisLabels, list[Cell]]:
    """Return all labels of each axis, and all cells."""
    is_one = ("axes" in parts) != ("grids" in parts)
    _require(is_one, "give either axes, or grids with axes in each of them")
    seeds = _seeds(parts) if seeds is None else seeds
    points = _points(parts)
    labels: dict[str, dict[str, None]] = {}
    for coordinates, _ in points:
        for axis, label in coordinates.items():
            labels.setdefault(axis, {})[label] = None
    axes = {axis: tuple(known) for axis, known in labels.items()}
    entries = _typed(parts.get("where", []), list, "where")
    conditions = [_condition(entry, axes) for entry in entries]
    cells: dict[tuple[Any, ...], Cell] = {}
    for coordinates, args in points:
        for wanted, added in conditions:
            if all(coordinates.get(axis) in labels for axis, labels in wanted.items()):
                args = [*args, *added]
        for seed in seeds:
            cell = Cell(coordinates, seed, (*args, "--seed_everything", str(seed), *extra))
            first = cells.setdefault((*sorted(coordinates.items()), seed), cell)
            problem = f"two grids give {cell.name} different settings"
            _require(first.args == cell.args, f"{problem}: give one of them another label")
    return axes, list(cells.values())


def _seeds(parts: Mapping[str, Any]) -> list[int]:
    seeds = _typed(parts.get("seeds", ["0"]), list, "seeds")
    are_integers = seeds and all(str(seed).isdecimal() for seed in seeds)
    problem = f"seeds: got {_as_text(seeds)}; expected a list of integers from 0 on"
    _require(are_integers, problem)
    return [int(seed) for seed in seeds]


def _points(parts: Mapping[str, Any]) -> list[tuple[dict[str, str], list[str]]]:
    """Return the coordinates of all grids, with the arguments that each adds."""
    base = _arguments(parts.get("base", {}), "base")
    points = []
    for grid in _typed(parts.get("grids", [{"axes": parts.get("axes")}]), list, "grids"):
        _check_names("a key in grids", _typed(grid, dict, "an entry of grids"), ("axes", "base"))
        base_of_grid = _arguments(grid.get("base", {}), "base")
        axes = _axes(grid.get("axes", {}))
        for labels in itertools.product(*axes.values()):
            coordinates = dict(zip(axes, labels, strict=True))
            args = [*base, *base_of_grid]
            for axis, label in coordinates.items():
                args += axes[axis][label]
            points.append((coordinates, args))
    return points


def _axes(given: Any) -> dict[str, dict[str, list[str]]]:
    """Return the axes of a grid: the arguments that each label adds."""
    axes: dict[str, dict[str, list[str]]] = {}
    for axis, values in _typed(given, dict, "axes").items():
        if isinstance(values, list):
            axes[axis] = {_as_text(value): [f"--{axis}", _as_text(value)] for value in values}
        else:
            labels = _typed(values, dict, f"axes: {axis}").items()
            axes[axis] = {k: _arguments(value, f"axes: {axis}: {k}") for k, value in labels}
        _require(axes[axis], f"axes: {axis} has no values: add some, or remove the axis")
    _require(axes, "axes must name at least one axis, such as data.alpha: [0.01, 1]")
    return axes


def _arguments(added: Any, name: str) -> list[str]:
    """Return the arguments of ``fit`` that a layer, options or a list of both add."""
    wanted = "a config layer, options such as {data.alpha: 1}, a list of both, or {} to add nothing"
    _require(added not in ("", "null"), f"{name} is empty: give {wanted}")
    if isinstance(added, str):
        return ["--config", added]
    args: list[str] = []
    if isinstance(added, dict):
        for key, value in added.items():
            args += [f"--{key}", _as_text(value)]
    else:
        for entry in added:
            args += _arguments(entry, name)
    return args


def _condition(given: Any, axes: AxisLabels) -> tuple[dict[str, list[str]], list[str]]:
    """Return the labels that an entry of ``where`` applies to, and the arguments that it adds."""
    wanted = dict(_typed(given, dict, "an entry of where"))
    is_complete = "add" in wanted and len(wanted) > 1
    _require(is_complete, f"where: {_as_text(given)} needs labels of some axes, and add")
    added = _arguments(wanted.pop("add"), "where: add")
    _check_names("an axis of where", wanted, axes)
    for axis, labels in wanted.items():
        wanted[axis] = [_as_text(label) for label in as_list(labels)]
        _check_names(f"where: {axis}", wanted[axis], axes[axis])
    return wanted, added


def _check_layout(sweep: Sweep) -> None:
    """Refuse a table or figure with wrong keys or axes, or with different settings in one place."""
    taken = ["cells", "report", "index"]  # the files of every report
    layouts = [("tables", entry) for entry in sweep.tables]
    layouts += [("figures", entry) for entry in sweep.figures]
    for kind, entry in layouts:
        name = _typed(entry, dict, f"an entry of {kind}").get("name")
        is_stem = isinstance(name, str) and re.fullmatch(r"[\w.+-]+", name)
        is_free = is_stem and name not in taken
        wanted = f"letters, digits, '_', '.', '+' and '-', other than {', '.join(taken)}"
        _require(is_free, f"{kind}: each entry needs a name of {wanted}, but it is {name}")
        taken.append(name)
        axes = _check_roles(f"{kind}: {name}", entry, sweep.axes, is_figure=kind == "figures")
        places: dict[tuple[str, ...], Mapping[str, str]] = {}
        for cell in sweep.cells:
            labels = cell.coordinates
            if not labels.keys() >= set(axes):
                continue
            first = places.setdefault(tuple(labels[axis] for axis in axes), labels)
            for axis, label in labels.items():
                problem = f"{kind}: {name} puts cells that differ in {axis} in the same place"
                role = "panels" if "kind" in entry else "columns"
                _require(first.get(axis) == label, f"{problem}: add {axis} to {role}")


def _check_roles(
    name: str, entry: Mapping[str, Any], axes: AxisLabels, is_figure: bool
) -> list[str]:
    """Refuse wrong keys and axes of a table or figure; return the axes that it shows."""
    roles = _TABLE
    more = ["metrics"]
    _typed(entry.get("metrics", []), list, f"{name}: metrics")
    if is_figure:
        _check_names(f"{name}: kind", [entry.get("kind", "null")], _FIGURES)
        roles = _FIGURES[entry["kind"]]
        more = ["kind", "reference"] if "series" in roles else ["kind"]
    _check_names(name, entry, [*roles, "name", "caption", *more])
    for role, is_required in roles.items():
        given = entry.get(role, [])
        is_given = isinstance(given, str) if role in _ONE_AXIS else given or not is_required
        _require(is_given, f"{name} needs {role}: one of {', '.join(axes)}")
        _check_names(f"{name}: {role}", as_list(given), axes)
    several = [key for key in ("best", "columns", "metrics") if key in entry]
    _require(len(several) < 2, f"{name} has {' and '.join(several)}: remove one of them")
    if "reference" in entry:
        _check_names(f"{name}: reference", [entry["reference"]], axes[entry["series"]])
    return list(itertools.chain(*(as_list(entry.get(role, ())) for role in roles)))


def _check_published(sweep: Sweep) -> None:
    """Refuse published numbers without a part, or of axes and labels that the sweep has not."""
    published = sweep.published
    keys = ("source", "axes", "values")
    _check_names("published", _typed(published, dict, "published"), keys)
    missing = [key for key in keys if key not in published]
    _require(not missing, f"published needs source, axes and values: add {' and '.join(missing)}")
    _check_names("published: axes", as_list(published["axes"]), sweep.axes)
    levels = [published["values"]]
    for axis in as_list(published["axes"]):
        for values in levels:
            where = f"published: values: {axis}"
            _check_names(where, _typed(values, dict, where), sweep.axes[axis])
        levels = list(itertools.chain(*(values.values() for values in levels)))
    for value in levels:
        problem = f"values: got {value}; expected numbers after its axes"
        _require(isinstance(value, str), f"published: {problem}")


def _require(is_valid: object, message: str) -> None:
    if not is_valid:
        raise ConfigurationError(message)


def _check_names(where: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in list(known):  # a list is no key
            got = f"{_as_text(name)}{did_you_mean(_as_text(name), known)}"
            raise ConfigurationError(f"{where}: got {got}; expected one of {', '.join(known)}")


def _typed(value: Any, kind: type, name: str) -> Any:
    form = "a mapping such as {name: value}" if kind is dict else "a list such as [a, b]"
    _require(isinstance(value, kind), f"{name}: got {_as_text(value)}; expected {form}")
    return value


def _as_text(value: Any, is_inner: bool = False) -> str:
    """Return a value in one line, as YAML."""
    if isinstance(value, dict):
        entries = [f"{key}: {_as_text(entry, True)}" for key, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list):
        entries = [_as_text(entry, True) for entry in value]
        return f"[{', '.join(entries)}]"
    is_plain = not is_inner or re.fullmatch(r"[\w./+-]+", value)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)
