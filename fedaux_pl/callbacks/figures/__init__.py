"""Figures of a federation, for loggers and for PNG files.

Each takes arrays or tensors and returns a ``matplotlib.figure.Figure``. Pyplot, which holds every
figure until it is closed, is not used. Matplotlib is imported by the first figure, because the
import is slow.
"""

from fedaux_pl.callbacks.figures.client_weights import certainty_figure, weight_by_class_figure
from fedaux_pl.callbacks.figures.partition_bubbles import partition_figure
from fedaux_pl.callbacks.figures.samples import (
    MAX_IMAGE_ROWS,
    ScoredText,
    top_images_figure,
    top_texts_figure,
    views_figure,
)
from fedaux_pl.callbacks.figures.style import MAX_CLIENTS
from fedaux_pl.callbacks.figures.tables import MAX_ROUNDS, confusion_figure, participation_figure

__all__ = [
    "MAX_CLIENTS",
    "MAX_IMAGE_ROWS",
    "MAX_ROUNDS",
    "ScoredText",
    "certainty_figure",
    "confusion_figure",
    "participation_figure",
    "partition_figure",
    "top_images_figure",
    "top_texts_figure",
    "views_figure",
    "weight_by_class_figure",
]
