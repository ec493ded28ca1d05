"""The data sources. A configuration chooses any imported subclass of ``Source`` by class name."""

from fedaux_pl.data.sources.embedded import Digits, Glosses
from fedaux_pl.data.sources.hub_text import AGNews, AmazonReviews, BookCorpus
from fedaux_pl.data.sources.image_folder import ImageFolder
from fedaux_pl.data.sources.imagenet32 import ImageNet32
from fedaux_pl.data.sources.imagenet_subset import ImageNetSubset
from fedaux_pl.data.sources.npz_images import NpzImages
from fedaux_pl.data.sources.text_files import TextFiles
from fedaux_pl.data.sources.torchvision_data import CIFAR10, CIFAR100, STL10, SVHN

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "STL10",
    "SVHN",
    "AGNews",
    "AmazonReviews",
    "BookCorpus",
    "Digits",
    "Glosses",
    "ImageFolder",
    "ImageNet32",
    "ImageNetSubset",
    "NpzImages",
    "TextFiles",
]
