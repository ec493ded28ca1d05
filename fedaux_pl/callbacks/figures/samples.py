"""Figures of samples: those with the highest scores of each client, and the views of SimCLR."""

import textwrap
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedaux_pl.callbacks.figures import style
from fedaux_pl.callbacks.figures.style import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_IMAGE_ROWS = 6  # clients in a figure
MAX_CHARACTERS = 90  # of a text in a figure


def top_images_figure(
    images: Array, scores: Array, client_names: Sequence[str], top: int = 8
) -> "Figure":
    """Draw the ``top`` uint8 images (N, C, H, W) of each client, by its scores, of shape (K, N).

    The first `MAX_IMAGE_ROWS` of the K clients have a row each.
    """
    shown = style.to_numpy(scores[:MAX_IMAGE_ROWS])
    ranking = np.argsort(-shown, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(shown, ranking, axis=1)
    return _sheet(
        style.to_numpy(images[ranking]),
        size=style.clipped(8.8 / ranking.shape[1], 0.7, 1.25),
        names=[
            textwrap.fill(name, 16, max_lines=3, placeholder=" …")
            for name in client_names[: len(shown)]
        ],
        captions=[[_score_text(value) for value in row] for row in best],
        title="Images with the highest scores" + style.of_more(len(shown), len(scores)),
        note=f"Of {counted(len(images), 'auxiliary image')}, by certainty score",
    )


class ScoredText(NamedTuple):
    """A text with the score that a client gives to it."""

    client: str
    score: float
    text: str


def top_texts_figure(rows: Sequence[ScoredText], total: int) -> "Figure":
    """Draw texts of a ``total``, cut to `MAX_CHARACTERS`, below the clients that score them."""
    width = 7.0
    scores = [_score_text(row.score) for row in rows]
    gap = style.text_width(scores, style.TICK_SIZE) + 0.15
    clients = len({row.client for row in rows})
    height = len(rows) + 1.4 * clients - 0.4  # in lines
    note = f"Of {counted(total, 'auxiliary text')}, by certainty score"
    inches = height * style.line_height(style.LABEL_SIZE)
    figure, axes = style.canvas(width, inches, "Texts with the highest scores", note)
    place: dict[str, Any] = {"va": "top", "parse_math": False}
    y = -0.4
    last_client = ""
    for row, score in zip(rows, scores, strict=True):
        if row.client != last_client:
            axes.text(
                0,
                y + 0.4,
                row.client,
                color=style.INK,
                fontsize=style.LABEL_SIZE,
                fontweight="bold",
                **place,
            )
            y += 1.4
            last_client = row.client
        text = style.cut(row.text, MAX_CHARACTERS)
        axes.text(0, y, score, color=style.MUTED, fontsize=style.TICK_SIZE, **place)
        axes.text(gap, y, text, color=style.INK, fontsize=style.TICK_SIZE, **place)
        y += 1
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure


def views_figure(images: Array, views: Array) -> "Figure":
    """Draw uint8 images (N, C, H, W) above views of them as ``SimCLRViews`` returns them."""
    originals = style.to_numpy(images) / 255
    pictures = np.concatenate([originals, style.to_numpy(views).clip(0, 1)])
    rows = pictures.reshape(-1, *images.shape)
    return _sheet(
        rows,
        size=1.0,
        names=["image", *(f"view {k}" for k in range(1, len(rows)))],
        captions=None,
        title="Views for the pre-training of h_0",
        note="SimCLR learns features in which the views of one image are close to each other",
    )


def _sheet(
    images: NDArray[Any],
    *,
    size: float,
    names: Sequence[str],
    captions: list[list[str]] | None,
    title: str,
    note: str,
) -> "Figure":
    """Draw images of shape (rows, columns, C, H, W), the longer side of ``size`` inches."""
    rows, columns, _, height, width = images.shape
    scale = size / max(height, width)
    height *= scale
    width *= scale
    # a cell holds an image, a gap and the caption; one unit of the axes is an inch
    across = width + 0.08
    down = height + 0.08
    if captions:
        widest = style.text_width(list(chain(*captions)), style.TICK_SIZE)
        across = max(across, widest + 0.1)
        down = height + 0.32
    figure, axes = style.canvas(across * columns, down * rows, title, note)
    axes.set_axis_off()
    for i in range(rows):
        upper = i * down
        lower = upper + height
        axes.text(
            -0.12,
            upper + height / 2,
            names[i],
            fontsize=style.LABEL_SIZE,
            color=style.INK,
            ha="right",
            va="center",
            parse_math=False,
        )
        for j, image in enumerate(images[i]):
            middle = (j + 0.5) * across
            axes.imshow(
                image[0] if len(image) == 1 else image.transpose(1, 2, 0),
                extent=(middle - width / 2, middle + width / 2, lower, upper),
                cmap="gray",
                vmin=0,
                vmax=255 if captions else 1,
            )
            if captions:
                axes.text(
                    middle,
                    lower + 0.03,
                    captions[i][j],
                    fontsize=style.TICK_SIZE,
                    color=style.MUTED,
                    ha="center",
                    va="top",
                )
    axes.set(xlim=(0, across * columns), ylim=(down * rows, 0), aspect="auto")
    return figure


def _score_text(value: float) -> str:
    """Return a score with three digits, or in scientific notation."""
    is_plain = value == 0 or 0.001 <= abs(value) < 1000
    return f"{value:.3f}" if is_plain else f"{value:.1e}"
