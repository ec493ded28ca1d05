"""The file of a sweep: axes whose values add config layers and options to runs of ``fit``."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.sweeps.cells import Cell
from fedaux_pl.sweeps.layout import check_layout, default_tables
from fedaux_pl.sweeps.published import Published, read_published
from fedaux_pl.sweeps.yaml_nodes import check_names, mapping, plain, read_nodes, sequence, text

FOLDER = Path(__file__).parents[1] / "configs"
METRICS = ("best", "last")
_SCRIPTS = {
    "paper/fig2": "paper/iris_ensemble.py",
    **{f"paper/{f}": f"paper/split_bubbles.py {f}" for f in ("fig6", "fig8", "digits_fig6")},
    "paper/fig14": "paper/gaussian_clients.py",
    **{f"paper/{f}": f"paper/similar_images.py {f}" for f in ("fig15", "fig16")},
    **{f"paper/{f}": f"paper/similar_images.py {f}" for f in ("digits_fig15", "digits_fig16")},
    "paper/table4": "paper/method_costs.py",
    "paper/table6": "paper/imagenet_subsets.py",
}  # of former files; scripts of the repository that need no sweep
_KEYS = (
    *("title", "note", "base", "seeds", "metric", "axes", "grids", "where"),
    *("tables", "figures", "published"),
)


@dataclass(frozen=True)
class Sweep:
    """A sweep: its cells, and how a report shows them.

    Attributes:
        name: The stem of the file.
        title: What it measures.
        note: What a reader should know; empty without one.
        metric: Which accuracy counts, the "best" or the "last" over the rounds.
        axes: The labels of each axis in the order of the file, over all grids.
        cells: All runs.
        tables: The tables as in the file, or the default one.
        figures: The figures as in the file.
        published: The numbers of the paper.
    """

    name: str
    title: str
    note: str
    metric: str
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    tables: tuple[Mapping[str, Any], ...]
    figures: tuple[Mapping[str, Any], ...]
    published: Published | None


def read_sweep(
    file: str | Path,
    extra: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    select: Mapping[str, Sequence[str]] | None = None,
) -> Sweep:
    """Reads the file of a sweep.

    Args:
        file: Its path, or the name of a packaged one such as ``paper/table1``.
        extra: Arguments of ``fit`` that all cells get, after their own.
        seeds: Seeds in place of those in the file.
        select: The labels of some axes that are wanted; cells without such an axis stay.

    Raises:
        ConfigurationError: If there is no such file, or if it cannot be used.
    """
    path = find_sweep(file)
    parts = read_nodes(path)
    try:
        check_names("an entry", parts, _KEYS)
        return _read(path, parts, tuple(extra), seeds, select or {})
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def find_sweep(file: str | Path) -> Path:
    """The path of a sweep file, given by path or by the name of a packaged one.

    Raises:
        ConfigurationError: If there is no such file.
    """
    if Path(file).is_file():
        return Path(file)
    name = str(file).removeprefix("configs/").removesuffix(".yaml")
    if (packaged := FOLDER / f"{name}.yaml").is_file():
        return packaged
    if name in _SCRIPTS:
        raise ConfigurationError(
            f"{file} needs no sweep: run python {_SCRIPTS[name]} in a clone of the repository"
        )
    names = sorted(f"paper/{known.stem}" for known in FOLDER.glob("paper/*.yaml"))
    raise ConfigurationError(
        f"there is no sweep file {file}: give a YAML file, or one of {', '.join(names)}"
        + did_you_mean(name, names)
    )


def base_arguments(parts: Mapping[str, yaml.Node]) -> list[str] | None:
    """The arguments of ``fit`` that the base of a file adds; None for a file without a base."""
    return _addition(parts["base"], "base") if "base" in parts else None


def _read(
    path: Path,
    parts: Mapping[str, yaml.Node],
    extra: tuple[str, ...],
    seeds: Sequence[int] | None,
    select: Mapping[str, Sequence[str]],
) -> Sweep:
    if "title" not in parts:
        raise ConfigurationError("title is missing: say in one line what the sweep measures")
    metric = text(parts["metric"]) if "metric" in parts else METRICS[0]
    if metric not in METRICS:
        raise ConfigurationError(f"metric must be one of {', '.join(METRICS)}, but is {metric}")
    axes, cells = _expand(parts, _seeds(parts) if seeds is None else seeds, extra)
    tables = _entries(parts, "tables") if "tables" in parts else default_tables(axes)
    figures = _entries(parts, "figures") if "figures" in parts else []
    check_layout(tables, figures, axes, [cell.coordinates for cell in cells])
    published = read_published(parts["published"], axes) if "published" in parts else None
    for axis, labels in select.items():
        check_names("the axis of select", [axis], axes)
        check_names(f"select: {axis}", labels, axes[axis])
        axes[axis] = tuple(label for label in axes[axis] if label in labels)
        cells = [cell for cell in cells if cell.coordinates.get(axis, labels[0]) in labels]
    if not cells:
        raise ConfigurationError("select leaves no cells: choose other labels")
    note = text(parts["note"]) if "note" in parts else ""
    return Sweep(
        name=path.stem,
        title=text(parts["title"]),
        note=note,
        metric=metric,
        axes=axes,
        cells=tuple(cells),
        tables=tuple(tables),
        figures=tuple(figures),
        published=published,
    )


def _seeds(parts: Mapping[str, yaml.Node]) -> list[int]:
    if "seeds" not in parts:
        return [0]
    given = [text(node) for node in sequence(parts["seeds"], "seeds")]
    if not given or not all(seed.isdecimal() for seed in given):
        wrong = text(parts["seeds"])
        raise ConfigurationError(f"seeds must be a list of integers from 0 on, but is {wrong}")
    return [int(seed) for seed in given]


def _expand(
    parts: Mapping[str, yaml.Node], seeds: Sequence[int], extra: tuple[str, ...]
) -> tuple[dict[str, tuple[str, ...]], list[Cell]]:
    """All labels of each axis, and all cells."""
    if ("axes" in parts) == ("grids" in parts):
        raise ConfigurationError("give either axes, or grids with axes in each of them")
    if len(set(seeds)) < len(seeds):
        raise ConfigurationError(f"seeds must differ, but are {', '.join(map(str, seeds))}")
    base = _addition(parts["base"], "base") if "base" in parts else []
    grids = [parts]
    if "grids" in parts:
        grids = [mapping(node, "an entry of grids") for node in sequence(parts["grids"], "grids")]
        for grid in grids:
            check_names("a key in grids", grid, ("axes", "base"))
    axes: dict[str, dict[str, None]] = {}
    points: list[tuple[dict[str, str], list[str]]] = []
    for grid in grids:
        own = _addition(grid["base"], "base") if "base" in grid and grid is not parts else []
        values = _axes(grid)
        for axis, labels in values.items():
            axes.setdefault(axis, {}).update(dict.fromkeys(labels))
        for labels_of_point in itertools.product(*values.values()):
            coordinates = dict(zip(values, labels_of_point, strict=True))
            added = [values[axis][label] for axis, label in coordinates.items()]
            points.append((coordinates, [*base, *own, *itertools.chain(*added)]))
    known = {axis: tuple(labels) for axis, labels in axes.items()}
    conditions = [
        _condition(node, known)
        for node in (sequence(parts["where"], "where") if "where" in parts else ())
    ]
    cells: dict[tuple[Any, ...], Cell] = {}
    for coordinates, args in points:
        more = [add for wanted, add in conditions if _matches(coordinates, wanted)]
        for seed in seeds:
            own_seed = ("--seed_everything", str(seed))
            cell = Cell(coordinates, seed, (*args, *itertools.chain(*more), *own_seed, *extra))
            first = cells.setdefault((*sorted(coordinates.items()), seed), cell)
            if first.args != cell.args:
                raise ConfigurationError(
                    f"two grids give {cell.name} different settings: give one of them another label"
                )
    return known, list(cells.values())


def _axes(grid: Mapping[str, yaml.Node]) -> dict[str, dict[str, list[str]]]:
    """The axes of a grid: the arguments that each label adds."""
    axes: dict[str, dict[str, list[str]]] = {}
    for axis, node in mapping(grid["axes"], "axes").items() if "axes" in grid else ():
        if isinstance(node, yaml.SequenceNode):
            labels = [text(entry) for entry in node.value]
            if len(set(labels)) < len(labels):
                raise ConfigurationError(f"axes: {axis} has a value twice: {text(node)}")
            axes[axis] = {label: [f"--{axis}", label] for label in labels}
        else:
            values = mapping(node, f"axes: {axis}").items()
            axes[axis] = {k: _addition(value, f"axes: {axis}: {k}") for k, value in values}
        if not axes[axis]:
            raise ConfigurationError(f"axes: {axis} has no values: add some, or remove the axis")
    if not axes:
        raise ConfigurationError("axes must name at least one axis, such as data.alpha: [0.01, 1]")
    return axes


def _addition(node: yaml.Node, name: str) -> list[str]:
    """The arguments of ``fit`` that a layer, a mapping of options or a list of both adds."""
    if isinstance(node, yaml.ScalarNode):
        if not node.value:
            raise ConfigurationError(
                f"{name} is empty: give a config layer, options such as {{data.alpha: 1}}, a list "
                "of both, or {} to add nothing"
            )
        return ["--config", node.value]
    if isinstance(node, yaml.MappingNode):
        options = mapping(node, name).items()
        return [part for option, value in options for part in (f"--{option}", text(value))]
    return [part for entry in sequence(node, name) for part in _addition(entry, name)]


def _condition(
    node: yaml.Node, axes: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """The labels that an entry of ``where`` applies to, and the arguments that it adds."""
    entry = mapping(node, "an entry of where")
    if "add" not in entry or len(entry) < 2:
        raise ConfigurationError(f"where: {text(node)} needs labels of some axes, and add")
    added = _addition(entry.pop("add"), "where: add")
    check_names("an axis of where", entry, axes)
    wanted = {}
    for axis, labels in entry.items():
        is_list = isinstance(labels, yaml.SequenceNode)
        wanted[axis] = [text(label) for label in (labels.value if is_list else [labels])]
        check_names(f"where: {axis}", wanted[axis], axes[axis])
    return wanted, added


def _matches(coordinates: Mapping[str, str], wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(coordinates.get(axis) in labels for axis, labels in wanted.items())


def _entries(parts: Mapping[str, yaml.Node], name: str) -> list[dict[str, Any]]:
    """The entries of ``tables`` or ``figures``."""
    nodes = sequence(parts[name], name)
    read = (mapping(node, f"an entry of {name}") for node in nodes)
    return [{key: plain(value) for key, value in entry.items()} for entry in read]
