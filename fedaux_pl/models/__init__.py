"""Classifiers with features and a linear head, created by name.

A new architecture is a file with a subclass of ``Classifier`` (for images, of
``FeatureClassifier``), decorated by ``register``, and a line here that imports it.
Networks of torchvision, timm and one's own are created by name too, see ``create_model``.
"""

from fedaux_pl.models.classifier import Classifier, backbone_state, of_head
from fedaux_pl.models.encoder import Encoder, TinyBERT
from fedaux_pl.models.image_classifier import FeatureClassifier, InputNormalization
from fedaux_pl.models.image_encoder import ImageEncoder
from fedaux_pl.models.layers import Norm
from fedaux_pl.models.mobilenet import MobileNetV2
from fedaux_pl.models.registry import (
    check_imported,
    check_model,
    complete_options,
    create_for,
    create_model,
    model_names,
    module_of,
    options_of,
    register,
    state_key,
)
from fedaux_pl.models.resnet import ResNet8
from fedaux_pl.models.saved_models import (
    ModelEnsemble,
    load_backbone,
    load_exported,
    load_network,
    save_backbone,
    save_ensemble,
    trained_models,
)
from fedaux_pl.models.shufflenet import ShuffleNet

__all__ = [
    "Classifier",
    "Encoder",
    "FeatureClassifier",
    "ImageEncoder",
    "InputNormalization",
    "MobileNetV2",
    "ModelEnsemble",
    "Norm",
    "ResNet8",
    "ShuffleNet",
    "TinyBERT",
    "backbone_state",
    "check_imported",
    "check_model",
    "complete_options",
    "create_for",
    "create_model",
    "load_backbone",
    "load_exported",
    "load_network",
    "model_names",
    "module_of",
    "of_head",
    "options_of",
    "register",
    "save_backbone",
    "save_ensemble",
    "state_key",
    "trained_models",
]
