"""State dicts, copied with few kernels: one for each tensor would cost a GPU more than the copy."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dict."""
    own = model.state_dict()
    copies = {key: torch.empty_like(value) for key, value in own.items()}
    copy_all(copies.values(), own.values())
    return copies


def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict in place.

    Where there is more to it than copying tensors, a hook or a state that is not of this model,
    ``load_state_dict`` does it, or says what is wrong.
    """
    own = model.state_dict()
    if own.keys() == state.keys() and _is_plain(model, own):
        given = [state[key] for key in own]
        if all(a.shape == b.shape for a, b in zip(own.values(), given, strict=True)):
            copy_all(own.values(), given)
            return
    model.load_state_dict(state)


def _is_plain(model: nn.Module, own: Mapping[str, Any]) -> bool:
    """Whether a state dict is the model's own tensors, which are loaded by being written to."""
    places = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    return all(isinstance(v, Tensor) and v.data_ptr() in places for v in own.values()) and not any(
        module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks
        for module in model.modules()
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
