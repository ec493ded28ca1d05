"""State dicts, copied with few kernels: one for each tensor would cost a GPU more than the copy."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dict."""
    own = model.state_dict()
    copies = {key: torch.empty_like(value) for key, value in own.items()}
    copy_all(copies.values(), own.values())
    return copies


def put_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict in place; one that is not of this model is refused as PyTorch does."""
    own = model.state_dict()
    same = own.keys() == state.keys() and all(
        value.shape == state[key].shape for key, value in own.items()
    )
    if same:
        copy_all(own.values(), [state[key] for key in own])
    else:
        model.load_state_dict(state)


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
