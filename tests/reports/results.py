"""Made-up sweeps and results."""

import math

import pandas as pd

from fedaux_pl.reports.values import Group, Result
from fedaux_pl.sweeps.cells import Cell, CellState
from fedaux_pl.sweeps.sweep_file import Sweep


def sweep(axes, tables=(), figures=(), published=None, metric="best"):
    published = published if published is None else {"axes": list(axes), "values": published}
    return Sweep(
        name="table",
        title="A title",
        note="",
        metric=metric,
        axes={axis: tuple(labels) for axis, labels in axes.items()},
        cells=(),
        tables=tuple(tables),
        figures=tuple(figures),
        published={} if published is None else {"source": "Tab. 1", **published},
    )


def result(coordinates, accuracy=None, seed=0, state=None, curve=(), total=3, **more):
    state = state or (CellState.MISSING if accuracy is None else CellState.DONE)
    cell = Cell(coordinates, seed, (), rounds=total)
    curve = pd.Series(curve, range(1, len(curve) + 1), dtype=float)
    accuracy = math.nan if accuracy is None else accuracy
    return Result(cell, state, len(curve), accuracy, curve, **more)


def group(coordinates, *accuracies, published="", **more):
    """A group with a seed for each accuracy; None for one that is missing."""
    coordinates = dict(pair.split("=") for pair in coordinates.split())
    results = [result(coordinates, a, seed, **more) for seed, a in enumerate(accuracies or [None])]
    return Group(coordinates, results, published)
