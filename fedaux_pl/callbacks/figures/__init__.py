"""Figures of a federation, for TensorBoard's ``add_figure``.

- `partition_figure`: the number of samples of each class that each client holds.
- `certainty_figure`: the distribution of each client's weight in the ensemble.
- `weight_by_class_figure`: each client's mean weight by the true class of the samples.
- `top_images_figure`: the auxiliary images with each client's highest scores.

Each takes arrays or tensors and returns a ``matplotlib.figure.Figure``. Pyplot, which holds every
figure until it is closed, is not used. Matplotlib is imported by the first figure, because the
import is slow.
"""

from fedaux_pl.callbacks.figures.arrays import MAX_CLIENTS
from fedaux_pl.callbacks.figures.client_weights import certainty_figure, weight_by_class_figure
from fedaux_pl.callbacks.figures.partition_bubbles import partition_figure
from fedaux_pl.callbacks.figures.top_images import MAX_IMAGE_ROWS, top_images_figure

__all__ = [
    "MAX_CLIENTS",
    "MAX_IMAGE_ROWS",
    "certainty_figure",
    "partition_figure",
    "top_images_figure",
    "weight_by_class_figure",
]
