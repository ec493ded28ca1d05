"""The architectures by name."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedaux_pl.models.classifier import Classifier

_Factory = TypeVar("_Factory", bound=Callable[..., Classifier])

_FACTORIES: dict[str, Callable[..., Classifier]] = {}


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


def create_model(name: str, num_classes: int, **options: Any) -> Classifier:
    """Create a model with newly drawn weights, or with those that an encoder's ``source`` holds.

    Args:
        name: One of :func:`model_names`, or one of them with a hyphen and anything after it, such
            as ``encoder-small``: so that one federation can have two of the same architecture.
        num_classes: Number of outputs, at least 1.
        **options: Options of the architecture. All for images that come with the package have
            ``in_channels``, ``width``, ``norm``, ``mean`` and ``std``; see
            :class:`fedaux_pl.models.encoder.Encoder` for those of text.

    Raises:
        ValueError: If the name is unknown or an option has a value that is not allowed.
        TypeError: If the architecture has no such option or a value has the wrong type.
    """
    return _checked(name, options)(num_classes=num_classes, **options)


def check_model(name: str, **options: Any) -> None:
    """Refuse a wrong name or option, as far as that can be seen without loading weights.

    Raises:
        ValueError: See :func:`create_model`.
        TypeError: See :func:`create_model`.
    """
    factory = _checked(name, options)
    check = getattr(factory, "check_options", None)
    if check is None:
        factory(num_classes=2, **options)
    else:
        check(**options)


def create_for(
    input_shape: Sequence[int], name: str, num_classes: int, *, pretrained: bool, **options: Any
) -> Classifier:
    """Create a model for data of a given shape.

    An architecture is told what it has a parameter for: ``in_channels`` or ``length`` of the
    samples, and ``pretrained``, whether to start from weights that come with it.

    Args:
        input_shape: The shape of one sample: (C, H, W) of images, (L,) of token ids.
        name: See :func:`create_model`.
        num_classes: See :func:`create_model`.
        pretrained: Whether weights that come with an architecture are used.
        **options: See :func:`create_model`; they win.

    Raises:
        ValueError: If the architecture is made for another kind of data, or see above.
        TypeError: See :func:`create_model`.
    """
    parameters = inspect.signature(_checked(name, options)).parameters
    first = "length" if len(input_shape) == 1 else "in_channels"
    other = {"length": "in_channels", "in_channels": "length"}[first]
    if other in parameters and first not in parameters:
        takes = {"length": "token ids of shape (L,)", "in_channels": "images of shape (C, H, W)"}
        raise ValueError(
            f"model {name!r} takes {takes[other]}, but the samples have shape "
            f"{tuple(input_shape)}; choose a model for {takes[first]}, or other data."
        )
    facts = {first: input_shape[0], "pretrained": pretrained}
    told = {key: value for key, value in facts.items() if key in parameters}
    return create_model(name, num_classes, **(told | options))


def options_of(name: str, names: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one of several architectures.

    Args:
        name: The architecture.
        names: All of them.
        options: Options for all, and under the name of an architecture a mapping of its own.
    """
    shared = {key: value for key, value in options.items() if key not in names}
    return {**shared, **options.get(name, {})}


def _checked(name: str, options: Mapping[str, Any]) -> Callable[..., Classifier]:
    """The architecture called ``name``, which has all these options."""
    known = name if name in _FACTORIES else name.partition("-")[0]
    if known not in _FACTORIES:
        raise ValueError(f"unknown model {name!r}; pass one of {', '.join(model_names())}.")
    factory = _FACTORIES[known]
    parameters = inspect.signature(factory).parameters
    unknown = sorted(options.keys() - parameters.keys())
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if unknown and not takes_any:
        allowed = ", ".join(p for p in parameters if p != "num_classes")
        got = ", ".join(f"{option}={options[option]!r}" for option in unknown)
        raise TypeError(f"model {name!r} has no option {got}; remove it or use one of {allowed}.")
    return factory
