"""Copies of an optimizer's state, and restoring them in place."""

from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedaux_pl.modules.state_dicts import copy_tensors


def is_resettable(optimizer: Optimizer) -> bool:
    """Return whether the state starts as zeros, so that setting it to zero is a fresh start.

    It does not with dampening: the first step of SGD does not dampen the gradient, later ones do.
    """
    has_dampening = any(group.get("dampening") for group in optimizer.param_groups)
    return isinstance(optimizer, (Adam, AdamW, SGD)) and not has_dampening


def snapshot(optimizer: Optimizer) -> dict[str, Any]:
    """Return a copy of the optimizer's state dict, which later steps do not change."""
    content = optimizer.state_dict()
    for group in content["param_groups"]:
        group["lr"] = float(group["lr"])  # see ``set_lr``
    copy: dict[str, Any] = apply_to_collection(content, Tensor, lambda x: x.detach().clone())
    return copy


@torch.no_grad()
def restore(optimizer: Optimizer, saved: dict[str, Any] | None) -> None:
    """Restore what ``snapshot`` returned; None resets an optimizer that ``is_resettable``.

    State tensors that exist are overwritten in place, because captured steps refer to them.
    Learning rates and other settings stay the optimizer's own.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    saved_entries = {} if saved is None else saved["state"]
    to_zero: list[Tensor] = []
    to_copy: list[tuple[Tensor, Tensor]] = []
    for index, parameter in enumerate(parameters):
        source = saved_entries.get(index, {})
        state = optimizer.state.get(parameter)
        if not state and source:
            optimizer.state[parameter] = {
                name: _copy_entry(name, value, parameter, optimizer)
                for name, value in source.items()
            }
        for name, value in (state or {}).items():
            if not isinstance(value, Tensor):
                continue
            if name in source:
                to_copy.append((value, source[name]))
            else:
                to_zero.append(value)
    # All at once: on a GPU, launching a kernel for each tensor takes longer than the kernels.
    if to_zero:
        torch._foreach_zero_(to_zero)
    copy_tensors((target for target, _ in to_copy), (source for _, source in to_copy))


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate; one that is a tensor, which captured steps read, in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _copy_entry(name: str, value: Any, parameter: Tensor, optimizer: Optimizer) -> Any:
    if not isinstance(value, Tensor):
        return value
    # Fused and capturable optimizers count steps on the device, others on the CPU.
    group = optimizer.param_groups[0]
    on_device = name != "step" or group.get("fused") or group.get("capturable")
    return value.detach().to(parameter.device if on_device else "cpu", copy=True)
