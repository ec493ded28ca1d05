"""Where data come from, who holds them, and how they are handed out."""

from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.datamodule import AuxiliaryDataModule, FederatedDataModule
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources import (
    CIFAR10,
    CIFAR100,
    STL10,
    SVHN,
    AGNews,
    AmazonReviews,
    BookCorpus,
    Digits,
    Glosses,
    ImageFolder,
    ImageNetSubset,
    NpzImages,
    TextFiles,
)
from fedaux_pl.data.views import SimCLRViews

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "STL10",
    "SVHN",
    "AGNews",
    "AmazonReviews",
    "AuxiliaryDataModule",
    "BookCorpus",
    "Digits",
    "Examples",
    "FederatedDataModule",
    "Glosses",
    "ImageFolder",
    "ImageNetSubset",
    "NpzImages",
    "SimCLRViews",
    "Source",
    "TensorBatches",
    "TextFiles",
]
