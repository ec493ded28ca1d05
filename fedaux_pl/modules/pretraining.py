"""The self-supervised module that learns the features h_0 of a given model."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fedaux_pl.modules.language_modeling import LanguageModeling
from fedaux_pl.modules.self_supervised import SelfSupervised
from fedaux_pl.modules.simclr import SimCLR

_MODULES: dict[str, type[SelfSupervised]] = {"images": SimCLR, "tokens": LanguageModeling}
_OPTIONS = {  # those that the other module does not have
    "images": {"temperature", "min_scale", "flip", "jitter", "strength", "grayscale"},
    "tokens": {"objective", "mask_rate"},
}


def create_pretraining(model: nn.Module, options: Mapping[str, Any]) -> SelfSupervised:
    """Creates ``SimCLR`` for a model of images, ``LanguageModeling`` for a model of text.

    Args:
        model: The model whose features are learned. Its attribute ``inputs`` is ``images`` (the
            default) or ``tokens``.
        options: Arguments of both modules by name; those that the created one lacks are ignored.
    """
    inputs = getattr(model, "inputs", "images")
    unused = set().union(*(names for kind, names in _OPTIONS.items() if kind != inputs))
    used = {name: value for name, value in options.items() if name not in unused}
    return _MODULES[inputs](model, **used)
