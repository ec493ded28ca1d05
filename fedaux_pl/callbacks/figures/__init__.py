"""Pictures of a federation, made for TensorBoard's ``add_figure``.

- `partition_figure`: which client holds how much of which class.
- `certainty_figure`: how the say of each client in the ensemble is distributed over samples.
- `weight_by_class_figure`: the same by the true class of the samples, where that is known.
- `top_images_figure`: the auxiliary images that a client finds most like its own.

Each takes plain arrays or tensors and returns a ``matplotlib.figure.Figure`` that belongs to the
caller alone: pyplot, which keeps every figure alive until it is closed, is not used. Matplotlib
is imported when the first picture is made, because importing it takes long.
"""

from fedaux_pl.callbacks.figures.arrays import MAX_CLIENTS
from fedaux_pl.callbacks.figures.certainty import certainty_figure, weight_by_class_figure
from fedaux_pl.callbacks.figures.images import MAX_IMAGE_ROWS, top_images_figure
from fedaux_pl.callbacks.figures.partition import partition_figure

__all__ = [
    "MAX_CLIENTS",
    "MAX_IMAGE_ROWS",
    "certainty_figure",
    "partition_figure",
    "top_images_figure",
    "weight_by_class_figure",
]
