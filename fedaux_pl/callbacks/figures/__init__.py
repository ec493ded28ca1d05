"""Figures of a federation, for loggers and for PNG files.

Each takes arrays or tensors and returns a ``matplotlib.figure.Figure``. Pyplot, which holds every
figure until it is closed, is not used. Matplotlib is imported by the first figure, because the
import is slow.
"""

from fedaux_pl.callbacks.figures.client_lines import client_lines_figure as client_lines_figure
from fedaux_pl.callbacks.figures.client_weights import certainty_figure as certainty_figure
from fedaux_pl.callbacks.figures.client_weights import (
    weight_by_class_figure as weight_by_class_figure,
)
from fedaux_pl.callbacks.figures.count_tables import MAX_ROUNDS as MAX_ROUNDS
from fedaux_pl.callbacks.figures.count_tables import confusion_figure as confusion_figure
from fedaux_pl.callbacks.figures.count_tables import participation_figure as participation_figure
from fedaux_pl.callbacks.figures.partition_bubbles import partition_figure as partition_figure
from fedaux_pl.callbacks.figures.samples import MAX_IMAGE_ROWS as MAX_IMAGE_ROWS
from fedaux_pl.callbacks.figures.samples import ScoredText as ScoredText
from fedaux_pl.callbacks.figures.samples import top_images_figure as top_images_figure
from fedaux_pl.callbacks.figures.samples import top_texts_figure as top_texts_figure
from fedaux_pl.callbacks.figures.samples import views_figure as views_figure
from fedaux_pl.callbacks.figures.style import MAX_CLIENTS as MAX_CLIENTS
