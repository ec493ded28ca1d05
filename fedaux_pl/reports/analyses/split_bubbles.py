"""Figs. 6 and 8 of the paper: who holds which classes, at several alphas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.arrays import Integers
from fedaux_pl.callbacks.figures.partition_bubbles import bubble_area, bubble_legend, draw_bubbles
from fedaux_pl.cli.parser import parse
from fedaux_pl.data import Examples, FederatedDataModule, Source
from fedaux_pl.errors import ConfigurationError, counted
from fedaux_pl.reports.analyses.axes_grid import panel_grid, panel_title
from fedaux_pl.reports.items import FigureItem, Item, TableItem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL = 0.17  # inches of a client's column and a class's row
_MAX_CELLS = 100  # of each, in a panel


class LabelsOnly(Source):
    """Labels with empty images: a split depends on nothing else.

    Args:
        labels: The class of each sample, int64 of shape (N,).
        classes: The names of the classes.
    """

    python_only: ClassVar[bool] = True
    """A configuration cannot name the labels."""

    def __init__(self, labels: torch.Tensor, classes: Sequence[str]) -> None:
        self.labels = labels
        self.classes = tuple(classes)

    def train(self) -> Examples:
        """The labels."""
        images = torch.zeros(len(self.labels), 1, 1, 1, dtype=torch.uint8)
        return Examples(images, self.labels, self.classes)

    def test(self) -> Examples:
        """The same: a split does not use test data."""
        return self.train()


def split_bubbles(
    base: Sequence[str] | None = None,
    *,
    alphas: list[float],
    clients: int | None = None,
    classes: int | None = None,
    samples_per_class: int | None = None,
    seed: int | None = None,
    columns: int = 3,
) -> list[Item]:
    """Draws the number of samples of each class that each client holds, a panel for each alpha.

    The split is the one that ``fit`` uses. It depends on the labels, the number of clients and the
    seed: those of ``base``, or labels of balanced classes.

    Args:
        base: The arguments of ``fit`` whose private data are split; alpha does not matter.
        alphas: The concentrations of the Dirichlet distribution.
        clients: Without a base, the number of clients.
        classes: Without a base, the number of classes.
        samples_per_class: Without a base, the number of samples of each class.
        seed: Without a base, ``seed_everything`` of the run.
        columns: The panels in a row.
    """
    if not alphas or columns < 1:
        raise ConfigurationError(
            "alphas must hold at least one number and columns be at least 1, but they are "
            f"{alphas} and {columns}"
        )
    own = {"clients": clients, "classes": classes, "samples_per_class": samples_per_class}
    own["seed"] = seed
    split = _balanced(**own) if base is None else _of_base(base, own)
    counts = [split.counts(alpha) for alpha in alphas]
    figure = _draw(counts, alphas, split.source.classes, columns)
    caption = (
        f"The Dirichlet split of {counted(len(split.source.labels), 'sample')} of "
        f"{len(split.source.classes)} classes{split.origin} over "
        f"{counted(split.clients, 'client')}, as fit makes it with seed {split.seed}. "
        "The area of a bubble is the number of samples of a class that a client holds; all "
        "clients hold equally many. The smaller alpha, the fewer classes does a client hold."
    )
    return [FigureItem("split_bubbles", caption, figure), _table(counts, alphas)]


@dataclass(frozen=True)
class _Split:
    source: LabelsOnly
    clients: int
    seed: int
    origin: str = ""

    def counts(self, alpha: float) -> Integers:
        """The samples of each class of each client, shape (n, C)."""
        data = FederatedDataModule(
            self.source, num_clients=self.clients, alpha=alpha, seed=self.seed
        )
        data.setup()
        return data.class_counts()


def _balanced(
    clients: int | None, classes: int | None, samples_per_class: int | None, seed: int | None
) -> _Split:
    if clients is None or classes is None or samples_per_class is None or seed is None:
        raise ConfigurationError(
            "without a base, the options must have clients, classes, samples_per_class and seed: "
            "add them, or a base whose private data are split"
        )
    if min(clients, classes, samples_per_class) < 1:
        raise ConfigurationError(
            "clients, classes and samples_per_class must be at least 1, but are "
            f"{clients}, {classes} and {samples_per_class}"
        )
    labels = torch.arange(classes).repeat_interleave(samples_per_class)
    return _Split(LabelsOnly(labels, [str(k) for k in range(classes)]), clients, seed)


def _of_base(base: Sequence[str], own: Mapping[str, int | None]) -> _Split:
    if given := [name for name, value in own.items() if value is not None]:
        raise ConfigurationError(
            f"{', '.join(given)} would contradict the base, which has them: leave them out, or "
            "the base"
        )
    data = parse("report", base).datamodule
    name, examples = type(data.private).__name__, data.private.train()
    if examples.clients is not None:
        raise ConfigurationError(
            f"{name} names the clients of its data, so that there is no Dirichlet split to draw: "
            "choose another base"
        )
    source = LabelsOnly(examples.targets, examples.classes)
    return _Split(source, data.num_clients, data.seed, f" ({name})")


def _draw(
    counts: Sequence[Integers], alphas: Sequence[float], classes: Sequence[str], columns: int
) -> "Figure":
    shown = [table[:_MAX_CELLS, :_MAX_CELLS] for table in counts]
    n, c = shown[0].shape
    names = [style.shorten(name) for name in classes[:c]]
    columns = min(columns, len(alphas))
    rows = math.ceil(len(alphas) / columns)
    figure, grid = panel_grid(
        rows,
        columns,
        panel=(_CELL * n, _CELL * c),
        gap=(0.25, 0.75),
        margins=(style.text_width(names, style.SMALL_TICK_SIZE) + 0.45, 1.0, 0.6),
        title="Which classes each client holds" + style.of_more(n, len(counts[0])),
        note="The area of a bubble is the number of samples of a class",
    )
    area = bubble_area(np.concatenate(shown), _CELL)  # the same in all panels
    ids = style.thinned(n, _CELL, 0.5)
    ticks = style.thinned(c, _CELL, style.line_height(style.SMALL_TICK_SIZE))
    text: dict[str, Any] = {"fontsize": style.TICK_SIZE, "color": style.INK}
    for index, axes in enumerate(axes for row in grid for axes in row):
        if index >= len(alphas):
            axes.remove()
            continue
        draw_bubbles(axes, shown[index], area)
        panel_title(axes, rf"$\alpha$ = {alphas[index]:g}")
        axes.set_xticks(ids, [str(i) for i in ids])
        first = index % columns == 0
        axes.set_yticks(ticks, [names[k] for k in ticks] if first else [], parse_math=False)
        if first:
            axes.set_ylabel("class", **text)
        if index + columns >= len(alphas):
            axes.set_xlabel("client", **text)
    bubble_legend(grid[0][-1], max(int(table.max()) for table in shown), area)
    return figure


def _table(counts: Sequence[Integers], alphas: Sequence[float]) -> TableItem:
    def row(table: Integers, alpha: float) -> list[str]:
        shares = table / table.sum(axis=1, keepdims=True)
        held = (table > 0).sum(axis=1).mean()
        most = 1 + (np.cumsum(-np.sort(-shares, axis=1), axis=1) < 0.9).sum(axis=1).mean()
        return [f"{alpha:g}", f"{shares.max(axis=1).mean():.0%}", f"{most:.1f}", f"{held:.1f}"]

    caption = (
        "Means over the clients: the share of a client's most frequent class, the number of "
        "classes that 90 % of its samples have, and the number of all its classes."
    )
    header = [["alpha", "most frequent class", "classes of 90 %", "classes"]]
    rows = [row(table, alpha) for table, alpha in zip(counts, alphas, strict=True)]
    return TableItem("classes_of_clients", caption, header, rows)
