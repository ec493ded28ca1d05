"""A figure of the auxiliary images with the highest scores of each client."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array
from fedaux_pl.errors import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_IMAGE_ROWS = 6
"""The maximum number of clients in the figure."""


def top_images_figure(
    images: Array, scores: Array, client_names: Sequence[str], top: int = 8
) -> "Figure":
    """Draws the auxiliary images to which each client gives its highest scores.

    Args:
        images: The auxiliary images, uint8 of shape (N, C, H, W) with C = 1 or 3.
        scores: Certainty scores of K clients on them, shape (K, N).
        client_names: The names of the K clients.
        top: The number of images per client.

    Returns:
        A figure with one row for each of the first `MAX_IMAGE_ROWS` clients, with its images in
        descending order of the score; of equal scores the first in the data comes first.

    Raises:
        ValueError: If the shapes do not match, images are not uint8 or not gray or RGB, a score
            is not finite, or top is less than 1.
    """
    table = arrays.as_floats(scores, "scores", ("K", "N"))
    arrays.check_images(images, table.shape[1])
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

    # One unit of the axes is an inch. A cell holds an image, a gap and the score.
    height, width = images.shape[2:]
    scale = arrays.clipped(8.8 / ranking.shape[1], 0.7, 1.25) / max(height, width)
    tall, wide = height * scale, width * scale
    best_scores = np.take_along_axis(shown, ranking, axis=1)
    captions = [[style.score_text(value) for value in row] for row in best_scores]
    widest = style.text_width([caption for row in captions for caption in row], style.TICK_SIZE)
    pitch = (max(wide + 0.08, widest + 0.1), tall + 0.32)
    plot = (pitch[0] * ranking.shape[1], pitch[1] * len(shown))
    figure, axes = style.canvas(
        plot=plot,
        left=style.text_width([line for name in names for line in name], style.LABEL_SIZE) + 0.1,
        right=0.05,
        bottom=0.05,
        title="Images with the highest scores" + style.of_more(len(shown), len(table)),
        note=f"Of {counted(table.shape[1], 'auxiliary image')}, by certainty score",
    )
    for i, best in enumerate(ranking):
        upper = i * pitch[1]
        text: dict[str, Any] = {"ha": "right", "va": "center", "color": style.INK}
        name = "\n".join(names[i])
        axes.text(
            -0.12, upper + tall / 2, name, fontsize=style.LABEL_SIZE, parse_math=False, **text
        )
        for j, k in enumerate(best):
            left = j * pitch[0] + (pitch[0] - wide) / 2
            _thumbnail(axes, picture_of(images, int(k)), captions[i][j], left, upper, scale)
    axes.set(xlim=(0, plot[0]), ylim=(plot[1], 0), aspect="auto")
    axes.set_axis_off()
    return figure


def _thumbnail(
    axes: "Axes", picture: NDArray[np.uint8], caption: str, left: float, upper: float, scale: float
) -> None:
    """Draws a picture, `scale` axis units per pixel, with a caption below."""
    right, lower = left + scale * picture.shape[1], upper + scale * picture.shape[0]
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=(left, right, lower, upper))
    text: dict[str, Any] = {"ha": "center", "va": "top", "color": style.MUTED}
    axes.text((left + right) / 2, lower + 0.03, caption, fontsize=style.TICK_SIZE, **text)


def picture_of(images: Array, index: int) -> NDArray[np.uint8]:
    """One image of (N, C, H, W) as (H, W) or (H, W, 3), as matplotlib takes it."""
    image = images[index]
    plain = image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    return plain[0] if len(plain) == 1 else plain.transpose(1, 2, 0)
