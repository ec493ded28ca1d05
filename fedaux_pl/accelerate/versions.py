"""Fast versions of modules, registered for the types that they replace.

A fast version is a subclass that overrides ``forward`` or a method that ``forward`` calls, and adds
no state. So a module becomes its fast version by assigning its ``__class__``: parameters, buffers,
hooks, state-dict names, copies and pickles are unaffected.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from fedaux_pl.models.adapted_network import AdaptedNetwork

_Version = TypeVar("_Version", bound=type[nn.Module])
_VERSIONS: dict[type[nn.Module], type[nn.Module]] = {}


def fast_version(plain: type[nn.Module]) -> Callable[[_Version], _Version]:
    """Register the decorated subclass as the fast version of ``plain``.

    Only modules whose type is exactly ``plain`` are replaced: a user's subclass may compute
    something else.
    """

    def decorate(version: _Version) -> _Version:
        _VERSIONS[plain] = version
        return version

    return decorate


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
