"""A sheet of images with the two views that SimCLR compares."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedaux_pl.callbacks.figures import arrays, style
from fedaux_pl.callbacks.figures.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def views_figure(images: Array, views: Array) -> "Figure":
    """Draws images above the views that were made of them.

    Args:
        images: uint8 of shape (N, C, H, W) with C = 1 or 3.
        views: Floats in [0, 1] of shape (V N, C, H, W): the first view of every image, then the
            second of every image, ..., as ``SimCLRViews`` returns them.

    Raises:
        ValueError: If the shapes do not match, images are not uint8 or not gray or RGB, or a value
            of a view is not finite.
    """
    axis_names = ("N", "C", "H", "W")
    arrays.check_images(images, images.shape[0])
    originals = arrays.as_floats(images, "images", axis_names) / 255
    made = arrays.as_floats(views, "views", axis_names)
    if made.shape[1:] != originals.shape[1:] or len(made) % len(originals):
        raise ValueError(
            f"views must be some of each of the images of shape {originals.shape}, but have shape "
            f"{made.shape}"
        )
    count, channels, height, width = originals.shape
    rows = np.concatenate([originals, made]).reshape(-1, count, channels, height, width)
    labels = ["image", *(f"view {k}" for k in range(1, len(rows)))]
    # One unit of the axes is an inch.
    scale = 1.0 / max(height, width)
    pitch = (width * scale + 0.08, height * scale + 0.08)
    plot = (pitch[0] * count, pitch[1] * len(rows))
    figure, axes = style.canvas(
        plot=plot,
        left=style.text_width(labels, style.LABEL_SIZE) + 0.15,
        right=0.05,
        bottom=0.1,
        title="Views for the pre-training of h_0",
        note="SimCLR learns features in which the views of one image are close to each other",
    )
    text: dict[str, Any] = {"ha": "right", "va": "center", "color": style.INK}
    for i, row in enumerate(rows):
        upper = i * pitch[1]
        axes.text(-0.1, upper + height * scale / 2, labels[i], fontsize=style.LABEL_SIZE, **text)
        for j, picture in enumerate(row.clip(0, 1)):
            left = j * pitch[0]
            box = (left, left + width * scale, upper + height * scale, upper)
            pixels = picture[0] if channels == 1 else picture.transpose(1, 2, 0)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=box)
    axes.set(xlim=(0, plot[0]), ylim=(plot[1], 0), aspect="auto")
    axes.set_axis_off()
    return figure
