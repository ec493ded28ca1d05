"""State dicts copied with few kernels: one launch per tensor takes a GPU longer than the copy."""

from collections.abc import Iterable, Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's state dict."""
    own = _plain_state(model) or model.state_dict()
    copies = {key: torch.empty_like(value) for key, value in own.items()}
    copy_tensors(copies.values(), own.values())
    return copies


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state dict in place; raises, as ``load_state_dict`` does, if it does not fit."""
    own = _plain_state(model)
    if own and own.keys() == state.keys():
        sources = [state[key] for key in own]
        if all(a.shape == b.shape for a, b in zip(own.values(), sources, strict=True)):
            copy_tensors(own.values(), sources)
            return
    model.load_state_dict(state)  # models with hooks, and states that do not fit


def _plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state dict; empty if a module overrides state-dict handling.

    ``state_dict()`` returns the same, but takes as long as a whole training step on a GPU.
    """
    found: dict[str, Tensor] = {}
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        attributes = module.__dict__
        if not _is_plain(type(module)) or any(attributes.get(name) for name in _STATE_HOOKS):  # type: ignore[arg-type]
            return {}
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and name not in module._non_persistent_buffers_set:
                found[prefix + name] = tensor
        children = [(f"{prefix}{n}.", m) for n, m in module._modules.items() if m is not None]
        stack += reversed(children)  # the first child is popped first, as in the state dict
    return found


# Attributes of a module that change what its state dict holds or how it is loaded.
_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "get_extra_state")
_STATE_HOOKS = (
    *_METHODS,
    "_load_from_state_dict",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@cache
def _is_plain(kind: type[nn.Module]) -> bool:
    """Whether modules of this class use PyTorch's state-dict handling."""
    # BatchNorm's own method is for state dicts of old versions, which have fewer keys.
    loads = (nn.Module._load_from_state_dict, _NormBase._load_from_state_dict)
    plain = all(getattr(kind, name) is getattr(nn.Module, name) for name in _METHODS)
    return plain and kind._load_from_state_dict in loads


@torch.no_grad()
def copy_tensors(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy tensors into others of the same shapes, by one call for each dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        group = by_dtype.setdefault(target.dtype, ([], []))
        group[0].append(target)
        group[1].append(source)
    for group in by_dtype.values():
        torch._foreach_copy_(*group)
