"""Classifiers with features and a linear head, created by name.

A new architecture is a file with a :class:`FeatureClassifier` decorated by :func:`register`, and a
line here that imports it.
"""

from fedaux_pl.models.base import (
    FeatureClassifier,
    InputNormalization,
    load_backbone,
    of_head,
    parameter_bytes,
)
from fedaux_pl.models.layers import Norm
from fedaux_pl.models.mobilenet import MobileNetV2
from fedaux_pl.models.registry import create_model, model_names, register
from fedaux_pl.models.resnet import ResNet8
from fedaux_pl.models.shufflenet import ShuffleNet

__all__ = [
    "FeatureClassifier",
    "InputNormalization",
    "MobileNetV2",
    "Norm",
    "ResNet8",
    "ShuffleNet",
    "create_model",
    "load_backbone",
    "model_names",
    "of_head",
    "parameter_bytes",
    "register",
]
