"""Architectures, registered and created by name."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedaux_pl.errors import ConfigurationError, did_you_mean
from fedaux_pl.models.adapted_network import LibraryFactory, find_class, torchvision_names
from fedaux_pl.models.classifier import Classifier

_Factory = TypeVar("_Factory", bound=Callable[..., Classifier])

_FACTORIES: dict[str, Callable[..., Classifier]] = {}


def register(name: str) -> Callable[[_Factory], _Factory]:
    """Decorate a class, or a function that returns a model, for ``create_model`` by ``name``.

    It takes ``num_classes`` and its options as keyword arguments.
    """

    def decorate(factory: _Factory) -> _Factory:
        if name in _FACTORIES:
            raise ValueError(
                f"the model name {name!r} is taken by {_FACTORIES[name]!r}; choose another than "
                f"{', '.join(model_names())}."
            )
        _FACTORIES[name] = factory
        return factory

    return decorate


def model_names() -> tuple[str, ...]:
    """Return the registered names, sorted."""
    return tuple(sorted(_FACTORIES))


def create_model(name: str, num_classes: int, **options: Any) -> Classifier:
    """Create a model, with random weights unless it is a pre-trained text encoder.

    Args:
        name: One of ``model_names``, a classifier of torchvision (``torchvision/resnet18``) or
            timm (``timm/resnet10t``), or the class path of a network (``my_package.MyNet``). A
            suffix after a hyphen, as in ``encoder-small``, is ignored, so that one federation can
            have two models of the same architecture.
        num_classes: Number of outputs, at least 1.
        **options: Options of the architecture. Our own for images have ``in_channels``, ``width``,
            ``norm``, ``mean`` and ``std``; see ``fedaux_pl.models.encoder.Encoder`` for those
            of text, ``fedaux_pl.models.adapted_network.LibraryFactory`` for torchvision's and
            timm's. A wrong value raises a ValueError, a wrong type or option a TypeError.

    Examples:
        >>> import torch
        >>> model = create_model("resnet8", num_classes=10, width=0.25)
        >>> model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 10])
        >>> model.features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 128])
    """
    factory = find_factory(name, options)
    if isinstance(factory, LibraryFactory):
        factory.check_options(**options)
    model: Classifier = factory(num_classes=num_classes, **options)
    model.created_as = {"name": name, "options": options}
    return model


def check_model(name: str, **options: Any) -> None:
    """Raise the errors of ``create_model`` for a wrong name or option, without any weights.

    An architecture whose constructor reads files has a class method ``check_options`` for this,
    which gets all its options.
    """
    factory = find_factory(name, options)
    check = getattr(factory, "check_options", None)
    if check is None:
        factory(num_classes=2, **options)
    else:
        check(**complete_options(name, **options))


def check_imported(names: Iterable[str], source: str = "the checkpoint") -> None:
    """Raise a ConfigurationError if a file names a class of a module that is not imported."""
    for name in names:
        module = module_of(name)
        if module and module not in sys.modules:
            raise ConfigurationError(
                f"{source} has the class {name}, whose module is not imported: if you trust it, "
                f"import {module} before; on the command line, add --import {module}"
            )


def module_of(name: str) -> str:
    """Return the module of a model that is named by its class path; empty for other names."""
    return name.partition("-")[0].rpartition(".")[0] if _is_class_path(name) else ""


def create_for(
    input_shape: Sequence[int],
    name: str,
    num_classes: int,
    *,
    pretrained: bool,
    **options: Any,
) -> Classifier:
    """Create a model for samples of shape (C, H, W), images, or (L,), token ids.

    ``in_channels`` and ``image_size`` = (H, W), or ``length``, which the shape determines, and
    ``pretrained`` are passed to architectures that have such a parameter, unless they are among the
    options. See ``create_model`` for the other arguments.

    Examples:
        >>> model = create_for((1, 28, 28), "resnet8", 10, pretrained=False, width=0.125)
        >>> model.conv1.in_channels
        1
    """
    parameters = inspect.signature(find_factory(name, options)).parameters
    is_text = len(input_shape) == 1
    needed = "length" if is_text else "in_channels"
    other = "in_channels" if is_text else "length"
    if other in parameters and needed not in parameters:
        kinds = {"length": "token ids of shape (L,)", "in_channels": "images of shape (C, H, W)"}
        raise ValueError(
            f"model {name!r} takes {kinds[other]}, but the samples have shape "
            f"{tuple(input_shape)}; choose a model for {kinds[needed]}, or other data."
        )
    defaults: dict[str, Any] = {needed: input_shape[0], "pretrained": pretrained}
    if not is_text:
        defaults["image_size"] = tuple(input_shape[1:])
    known = {key: value for key, value in defaults.items() if key in parameters}
    return create_model(name, num_classes, **(known | options))


def options_of(name: str, names: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options of the model ``name``, one of ``names``.

    An entry of ``options`` under the name of a model is a mapping with options of that model only;
    the other entries are options of all models.

    Examples:
        >>> options = {"width": 0.5, "shufflenet": {"groups": 3}}
        >>> options_of("shufflenet", ["resnet8", "shufflenet"], options)
        {'width': 0.5, 'groups': 3}
    """
    shared = {key: value for key, value in options.items() if key not in names}
    special = options.get(name, {})
    if not isinstance(special, Mapping):
        raise TypeError(f"the options of model {name!r}: got {special!r}; expected a mapping")
    return {**shared, **special}


def complete_options(name: str, **options: Any) -> dict[str, Any]:
    """Add the default values of an architecture to its options."""
    parameters = inspect.signature(find_factory(name, options)).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | options


def find_factory(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what creates the architecture ``name``; raise a TypeError for unknown options."""
    base = name.partition("-")[0]
    library, _, network = base.partition("/")
    factory: Callable[..., Any] | None = _FACTORIES.get(name) or _FACTORIES.get(base)
    if factory is None and library in ("torchvision", "timm"):
        factory = LibraryFactory(library, network)
    elif factory is None and _is_class_path(name):
        factory = find_class(base)
    if factory is None:
        meant = did_you_mean(name, model_names())
        if base in torchvision_names():
            meant = f" (did you mean torchvision/{base}?)"
        raise ValueError(
            f"unknown model {name!r}{meant}; pass one of {', '.join(model_names())}, a classifier "
            "of torchvision or timm (torchvision/resnet18), or a class path (my_package.MyNet)."
        )
    parameters = inspect.signature(factory).parameters
    allowed = [parameter for parameter in parameters if parameter != "num_classes"]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = {"num_classes"} if takes_any else options.keys() - set(allowed)
    wrong = sorted(unknown & options.keys())
    if wrong:
        got = ", ".join(f"{option}={options[option]!r}" for option in wrong)
        raise TypeError(
            f"model {name!r} has no option {got}{did_you_mean(wrong[0], allowed)}; remove it or "
            f"use one of {', '.join(allowed)}."
        )
    return factory


def is_registered(factory: Callable[..., Any]) -> bool:
    """Return whether an architecture can be created by a name of its own."""
    return factory in _FACTORIES.values()


def _is_class_path(name: str) -> bool:
    base = name.partition("-")[0]
    return "." in base and "/" not in base and not {name, base} & _FACTORIES.keys()


def state_key(name: str) -> str:
    """Return the name of a model as part of a state-dict entry, in which a dot is a separator."""
    return name.replace(".", ":")
