"""State dicts, copied with few kernels: one for each tensor would cost a GPU more than the copy."""

from collections.abc import Iterable, Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dict."""
    own = _entries(model) or model.state_dict()
    copies = {key: torch.empty_like(value) for key, value in own.items()}
    copy_all(copies.values(), own.values())
    return copies


def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict in place.

    Where there is more to it than copying tensors, a hook or a state that is not of this model,
    ``load_state_dict`` does it, or says what is wrong.
    """
    own = _entries(model)
    if own and own.keys() == state.keys():
        given = [state[key] for key in own]
        if all(a.shape == b.shape for a, b in zip(own.values(), given, strict=True)):
            copy_all(own.values(), given)
            return
    model.load_state_dict(state)


def _entries(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict; none where a module has a say of its own in what is in it.

    ``state_dict`` finds them too, in a time in which a GPU does a whole step.
    """
    found: dict[str, Tensor] = {}
    todo = [("", model)]
    while todo:
        prefix, module = todo.pop()
        own = module.__dict__
        if not _is_plain(type(module)) or any(own.get(name) for name in _OWN_SAY):  # type: ignore[arg-type]
            return {}
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and name not in module._non_persistent_buffers_set:
                found[prefix + name] = tensor
        inner = [(f"{prefix}{n}.", m) for n, m in module._modules.items() if m is not None]
        todo += reversed(inner)  # so that the first is next, as in the state dict
    return found


_OWN_SAY = (
    "state_dict",
    "load_state_dict",
    "_save_to_state_dict",
    "_load_from_state_dict",
    "get_extra_state",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@cache
def _is_plain(kind: type[nn.Module]) -> bool:
    """Whether the state dict of such modules is their tensors, loaded by being written to."""
    return (
        kind.state_dict is nn.Module.state_dict
        and kind.load_state_dict is nn.Module.load_state_dict
        and kind._save_to_state_dict is nn.Module._save_to_state_dict
        # BatchNorm's is about state dicts of old, which have fewer keys
        and kind._load_from_state_dict
        in (nn.Module._load_from_state_dict, _NormBase._load_from_state_dict)
        and kind.get_extra_state is nn.Module.get_extra_state
    )


@torch.no_grad()
def copy_all(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copies tensors into others of the same shapes."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        pairs = kinds.setdefault(target.dtype, ([], []))
        pairs[0].append(target)
        pairs[1].append(source)
    for kept, given in kinds.values():
        torch._foreach_copy_(kept, given)
