"""The auxiliary images that clients find most like their own."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.callbacks.figures.arrays import Array, as_floats, check_images, clipped
from fedaux_pl.callbacks.figures.style import (
    INK,
    LABEL_SIZE,
    MUTED,
    TICK_SIZE,
    canvas,
    counted,
    figure_of,
    of_more,
    score_text,
    text_width,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_IMAGE_ROWS = 6
"""The most clients whose images are shown."""


def top_images_figure(
    images: Array, scores: Array, client_names: Sequence[str], top: int = 8
) -> "Figure":
    """Draws the auxiliary images to which each client gives its highest scores.

    Args:
        images: The auxiliary images, uint8 of shape (N, C, H, W) with C = 1 or 3.
        scores: Certainty scores of K clients on them, shape (K, N).
        client_names: What to call the K clients.
        top: How many images of each client, fewer if there are fewer images.

    Returns:
        A figure with one row for each client, of the first `MAX_IMAGE_ROWS`, and its images in
        the order of descending score; of equal ones the first in the data comes first.

    Raises:
        ValueError: If the shapes do not match, images are not uint8 or not grey or RGB, a score
            is not finite, or top is less than 1.
    """
    table = as_floats(scores, "scores", ("K", "N"))
    check_images(images, table.shape[1])
    if len(client_names) != len(table):
        raise ValueError(
            f"client_names must name the {len(table)} clients of scores, but there are "
            f"{len(client_names)}"
        )
    if top < 1:
        raise ValueError(f"top must be at least 1, but is {top}")
    shown = table[:MAX_IMAGE_ROWS]
    ranking = np.argsort(-shown, axis=1, kind="stable")[:, :top]
    names = [
        textwrap.wrap(name, 16, max_lines=3, placeholder=" …") or [""]
        for name in client_names[: len(shown)]
    ]

    # One unit of the axes is an inch: an image with a gap to the next, and room for its score.
    height, width = images.shape[2:]
    scale = clipped(8.8 / ranking.shape[1], 0.7, 1.25) / max(height, width)
    tall, wide = height * scale, width * scale
    captions = [
        [score_text(value) for value in row[k]] for row, k in zip(shown, ranking, strict=True)
    ]
    widest = text_width([caption for row in captions for caption in row], TICK_SIZE)
    pitch = (max(wide + 0.08, widest + 0.1), tall + 0.32)
    plot = (pitch[0] * ranking.shape[1], pitch[1] * len(shown))
    axes = canvas(
        plot=plot,
        left=text_width([line for name in names for line in name], LABEL_SIZE) + 0.1,
        right=0.05,
        bottom=0.05,
        title="What each client is most certain about" + of_more(len(shown), len(table)),
        note="The highest certainty scores among "
        f"{counted(table.shape[1], 'auxiliary image')}, best first",
    )
    for i, best in enumerate(ranking):
        upper = i * pitch[1]
        axes.text(
            -0.12,
            upper + tall / 2,
            "\n".join(names[i]),
            ha="right",
            va="center",
            fontsize=LABEL_SIZE,
            color=INK,
            parse_math=False,
        )
        for j, k in enumerate(best):
            left = j * pitch[0] + (pitch[0] - wide) / 2
            _thumbnail(axes, _picture(images, int(k)), captions[i][j], left, upper, scale)
    axes.set(xlim=(0, plot[0]), ylim=(plot[1], 0), aspect="auto")
    axes.set_axis_off()
    return figure_of(axes)


def _thumbnail(
    axes: "Axes", picture: NDArray[np.uint8], caption: str, left: float, upper: float, scale: float
) -> None:
    """Draws a picture, `scale` units of the axes a pixel, with a caption below."""
    right, lower = left + scale * picture.shape[1], upper + scale * picture.shape[0]
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=(left, right, lower, upper))
    axes.text(
        (left + right) / 2,
        lower + 0.03,
        caption,
        ha="center",
        va="top",
        fontsize=TICK_SIZE,
        color=MUTED,
    )


def _picture(images: Array, index: int) -> NDArray[np.uint8]:
    """Takes one image as (H, W) or (H, W, 3)."""
    image = images[index]
    plain = image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    return plain[0] if len(plain) == 1 else plain.transpose(1, 2, 0)
