"""A figure of the clients that took part in each round."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROUNDS = 250
"""The maximum number of rounds in the figure; of more rounds the last ones are shown."""


def participation_figure(took_part: Array, client_names: Sequence[str]) -> "Figure":
    """Draws which clients took part in which round, and how often each of them did.

    Args:
        took_part: 1 where a client took part and 0 elsewhere, integers of shape (rounds, clients).
        client_names: The names of the clients.

    Returns:
        A figure with rounds from left to right and one row for each of the first `MAX_CLIENTS`
        clients, with the number of its rounds behind it.

    Raises:
        ValueError: If the shapes do not match, or an entry is neither 0 nor 1.
    """
    table = arrays.as_integers(took_part, "took_part", ("n_rounds", "n_clients"))
    rounds, clients = table.shape
    if clients != len(client_names):
        raise ValueError(
            f"client_names must name the {clients} clients of took_part, but there are "
            f"{len(client_names)}"
        )
    if table.min() < 0 or table.max() > 1:
        raise ValueError(
            f"took_part must be 0 or 1, but ranges from {table.min()} to {table.max()}"
        )
    shown = table[-MAX_ROUNDS:, : arrays.MAX_CLIENTS]
    first = rounds - len(shown) + 1
    names = [style.shorten(name) for name in client_names[: shown.shape[1]]]
    column = arrays.clipped(8.0 / len(shown), 0.03, 0.35)
    row = arrays.clipped(6.4 / len(names), 0.08, 0.3)
    part = "" if first == 1 else f", from round {first}"
    figure, axes = style.canvas(
        plot=(column * len(shown), row * len(names)),
        left=style.text_width(names, style.TICK_SIZE) + 0.2,
        right=0.8,
        bottom=0.65,
        title="Who took part" + style.of_more(len(names), clients),
        note=f"{counted(rounds, 'round')}{part}; filled: the client trained in the round. "
        "Right: its number of rounds",
    )
    from matplotlib.colors import ListedColormap

    extent = (first - 0.5, rounds + 0.5, len(names) - 0.5, -0.5)
    image: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmin": 0, "vmax": 1}
    axes.imshow(shown.T, cmap=ListedColormap([style.BAND, style.BLUE]), extent=extent, **image)
    if min(row, column) > 0.12:
        axes.set_xticks([t + 0.5 for t in range(first, rounds)], minor=True)
        axes.set_yticks([i + 0.5 for i in range(len(names) - 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
    ticks = style.thinned(len(names), row, style.line_height(style.TICK_SIZE))
    axes.set_yticks(ticks, [names[i] for i in ticks], parse_math=False)
    text: dict[str, Any] = {"va": "center", "fontsize": style.TICK_SIZE, "color": style.MUTED}
    for i in ticks:
        axes.annotate(
            str(table[:, i].sum()),
            (1, i),
            (6, 0),
            ("axes fraction", "data"),
            "offset points",
            **text,
        )
    labels = [first + t for t in style.thinned(len(shown), column, 0.35)]
    axes.set_xticks(labels, [str(t) for t in labels])
    axes.set_xlabel("round", fontsize=style.LABEL_SIZE, color=style.INK)
    return figure
