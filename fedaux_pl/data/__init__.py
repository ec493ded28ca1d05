"""Where data come from, who holds them, and how they are handed out."""

from fedaux_pl.data.batches import TensorBatches
from fedaux_pl.data.datamodule import AuxiliaryDataModule, FederatedDataModule
from fedaux_pl.data.source import Examples, Source
from fedaux_pl.data.sources import (
    CIFAR10,
    CIFAR100,
    STL10,
    SVHN,
    Digits,
    ImageFolder,
    ImageNetSubset,
    NpzImages,
)
from fedaux_pl.data.views import SimCLRViews

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "STL10",
    "SVHN",
    "AuxiliaryDataModule",
    "Digits",
    "Examples",
    "FederatedDataModule",
    "ImageFolder",
    "ImageNetSubset",
    "NpzImages",
    "SimCLRViews",
    "Source",
    "TensorBatches",
]
