"""The state of an optimizer, put in and taken out without moving its tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedaux_pl.models.states import copy_all

# Those whose state begins as zeros, so that zeros are as good as none.
RESETTABLE = (Adam, AdamW, SGD)


def snapshot(optimizer: Optimizer) -> dict[str, Any]:
    """A copy of the optimizer's state dict, which further steps leave as it is."""
    content = optimizer.state_dict()
    return {
        "state": {
            index: {name: _copied(value) for name, value in entries.items()}
            for index, entries in content["state"].items()
        },
        "param_groups": content["param_groups"],
    }


@torch.no_grad()
def restore(optimizer: Optimizer, kept: dict[str, Any] | None) -> None:
    """Puts an optimizer where another one stopped, or to its beginning.

    Tensors that are there already stay where they are and take the values: recorded steps go on
    with them. Learning rates and other settings are the optimizer's own.

    Args:
        optimizer: Fresh, or one of ``RESETTABLE``.
        kept: What ``snapshot`` gave; None for the beginning.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries = {} if kept is None else kept["state"]
    fresh: list[Tensor] = []
    going_on: list[tuple[Tensor, Tensor]] = []
    for index, parameter in enumerate(parameters):
        own = optimizer.state.get(parameter)
        if own:
            for name, value in own.items():
                if isinstance(value, Tensor):
                    given = entries.get(index, {}).get(name)
                    fresh.append(value) if given is None else going_on.append((value, given))
        elif index in entries:
            optimizer.state[parameter] = {
                name: _placed(name, value, parameter, optimizer)
                for name, value in entries[index].items()
            }
    # at once: on a GPU, a kernel for each of them takes longer than what it does
    if fresh:
        torch._foreach_zero_(fresh)
    copy_all((own for own, _ in going_on), (given for _, given in going_on))


def _placed(name: str, value: Any, parameter: Tensor, optimizer: Optimizer) -> Any:
    """A copy of an entry, where this optimizer would keep it."""
    if not isinstance(value, Tensor):
        return value
    if name != "step":
        return value.detach().to(parameter.device, copy=True)
    # the counter of a fused or recorded optimizer is on the device, that of others is not
    group = optimizer.param_groups[0]
    on_device = group.get("fused") or group.get("capturable")
    return value.detach().to(parameter.device if on_device else "cpu", copy=True)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
