"""Which self-supervised module learns h_0 of which model."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedaux_pl.modules.language import LanguageModelling
from fedaux_pl.modules.selfsupervised import SelfSupervised
from fedaux_pl.modules.simclr import SimCLR

_BY_INPUTS: dict[str, type[SelfSupervised]] = {"images": SimCLR, "tokens": LanguageModelling}


def create_pretraining(
    model: nn.Module,
    options: Mapping[str, Any],
    instead: Mapping[type[SelfSupervised], Callable[..., SelfSupervised]] | None = None,
) -> SelfSupervised:
    """The module that learns h_0 of a model, which says itself what its inputs are.

    Args:
        model: Whose features are learned; one that does not say takes images.
        options: Settings by name; those of other kinds of pre-training are passed over.
        instead: What creates the module in the place of its class, and takes the same settings.
    """
    module = _BY_INPUTS[getattr(model, "inputs", "images")]
    known = inspect.signature(module).parameters
    create = (instead or {}).get(module, module)
    return create(model, **{key: value for key, value in options.items() if key in known})
