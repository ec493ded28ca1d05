"""Fast versions of modules, registered for the types that they replace.

A fast version is a subclass that overrides ``forward`` or a method that ``forward`` calls, and adds
no state. So a module becomes its fast version by assigning its ``__class__``: parameters, buffers,
hooks, state-dict names, copies and pickles are unaffected.
"""

import warnings
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

import torch
from torch import nn

from fedaux_pl.accelerate.context import KernelError
from fedaux_pl.models.adapted_network import AdaptedNetwork

_Version = TypeVar("_Version", bound=type[nn.Module])
_VERSIONS: dict[type[nn.Module], type[nn.Module]] = {}
_FAILED: set[type[nn.Module]] = set()  # fast versions that run as the plain ones


def fast_version(plain: type[nn.Module]) -> Callable[[_Version], _Version]:
    """Register the decorated subclass as the fast version of ``plain``.

    Only modules whose type is exactly ``plain`` are replaced: a user's subclass may compute
    something else.
    """

    def decorate(version: _Version) -> _Version:
        for name, method in list(vars(version).items()):
            if isfunction(method) and hasattr(plain, name):
                setattr(version, name, _or_plain(version, method))
        _VERSIONS[plain] = version
        return version

    return decorate


def _or_plain(version: type[nn.Module], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a fast version that runs the plain one if a kernel fails.

    Not in training, where the layers before it may have updated BatchNorm's statistics, and where
    kernels of the backward pass fail later: ``CudaRunner`` starts a training again.
    """

    @wraps(method)
    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        if type(self) not in _FAILED:
            try:
                return method(self, *args, **options)
            except KernelError as error:
                if torch.is_grad_enabled():
                    raise
                fall_back(self, error)
        return getattr(super(version, self), method.__name__)(*args, **options)

    return call


def fall_back(module: nn.Module, error: KernelError) -> None:
    """Let layers of the types in a module run their plain versions from now on, with a warning."""
    failed = {type(layer) for layer in module.modules()} & set(_VERSIONS.values())
    _FAILED.update(failed)
    names = ", ".join(sorted(version.__name__.removeprefix("Fast") for version in failed))
    warnings.warn(f"{error}: from here on plain PyTorch runs {names}, slower", stacklevel=2)


def speed_up(module: nn.Module) -> nn.Module:
    """Turn a module and all its submodules into their fast versions, in place.

    Return the same module. Networks of others, in an ``AdaptedNetwork``, stay as they are: the
    kernels are tested in our architectures only.

    Examples:
        >>> from fedaux_pl.accelerate import speed_up
        >>> from fedaux_pl.models import ResNet8
        >>> model = ResNet8(10, width=0.125)
        >>> names = list(model.state_dict())
        >>> type(speed_up(model)).__name__
        'FastResNet8'
        >>> isinstance(model, ResNet8) and list(model.state_dict()) == names
        True
    """
    foreign: set[nn.Module] = set()
    for layer in module.modules():
        if isinstance(layer, AdaptedNetwork):
            foreign.update(layer.network.modules())
    for layer in module.modules():
        if layer not in foreign:
            layer.__class__ = _VERSIONS.get(type(layer), type(layer))
    return module
