"""The architectures by name."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from fedaux_pl.models.base import FeatureClassifier

_Factory = TypeVar("_Factory", bound=Callable[..., FeatureClassifier])

_FACTORIES: dict[str, Callable[..., FeatureClassifier]] = {}


def register(name: str) -> Callable[[_Factory], _Factory]:
    """Make an architecture available to :func:`create_model` under ``name``.

    Decorate the class, or a function that returns an instance; it takes ``num_classes`` and its
    options as keyword arguments::

        @register("mynet")
        class MyNet(FeatureClassifier): ...

    Args:
        name: The name, which nothing else may have.

    Raises:
        ValueError: If the name is taken.
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
    """Names that :func:`create_model` knows, sorted."""
    return tuple(sorted(_FACTORIES))


def create_model(name: str, num_classes: int, **options: Any) -> FeatureClassifier:
    """Create a model with newly drawn weights.

    Args:
        name: One of :func:`model_names`.
        num_classes: Number of outputs, at least 1.
        **options: Options of the architecture. All that come with the package have
            ``in_channels``, ``width``, ``norm``, ``mean`` and ``std``.

    Raises:
        ValueError: If the name is unknown or an option has a value that is not allowed.
        TypeError: If the architecture has no such option or a value has the wrong type.
    """
    if name not in _FACTORIES:
        raise ValueError(f"unknown model {name!r}; pass one of {', '.join(model_names())}.")
    factory = _FACTORIES[name]
    parameters = inspect.signature(factory).parameters
    unknown = sorted(options.keys() - parameters.keys())
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if unknown and not takes_any:
        allowed = ", ".join(p for p in parameters if p != "num_classes")
        got = ", ".join(f"{option}={options[option]!r}" for option in unknown)
        raise TypeError(f"model {name!r} has no option {got}; remove it or use one of {allowed}.")
    return factory(num_classes=num_classes, **options)
