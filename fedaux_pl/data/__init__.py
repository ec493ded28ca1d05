"""Data sources, the split over the clients, data modules, batches and augmented views."""

from fedaux_pl.data import sources
from fedaux_pl.data.as_source import as_source
from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.datamodule import FederatedDataModule
from fedaux_pl.data.in_memory import InMemory
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources import *  # noqa: F403 - one list of all sources
from fedaux_pl.data.sources.text_files import TextDraw, TextLayout
from fedaux_pl.data.views import SimCLRViews, ViewSettings

__all__ = [
    "Examples",
    "FederatedDataModule",
    "InMemory",
    "SimCLRViews",
    "Source",
    "TensorBatches",
    "TextDraw",
    "TextLayout",
    "ViewSettings",
    "as_source",
]
__all__ += sources.__all__
