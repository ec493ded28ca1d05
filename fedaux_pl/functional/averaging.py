"""Parameter averaging (McMahan et al. 2017; FedAUX, Algorithm 2).

    theta = sum_i |D_i| theta_i / sum_l |D_l|

Parameters and buffers are averaged: BatchNorm's running statistics must fit its averaged weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedaux_pl.errors import check_setting

State = Mapping[str, Tensor]


def average_states(states: Sequence[State], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
    """Average state dicts with weights, usually |D_i|, which are divided by their sum.

    Floating-point tensors are accumulated in at least float32. The averages of integer and boolean
    tensors (BatchNorm's counter of batches) are rounded to the nearest integer. Keys, shapes and
    dtypes must be the same in all states, and values finite.

    Examples:
        >>> states = [{"weight": torch.tensor([0.0])}, {"weight": torch.tensor([4.0])}]
        >>> average_states(states, weights=[1, 3])
        {'weight': tensor([3.])}
    """
    normalized = normalize_weights(weights, len(states))
    check_same_layout(states)
    average = average_stream(states, normalized, states[0])
    check_finite_average(average, states)
    return average


def average_stream(
    states: Iterable[State],
    weights: Sequence[float],
    template: State,
) -> dict[str, Tensor]:
    """Compute sum_i w_i theta_i of models that are given one after another, in this order.

    The keys, shapes and dtypes are those of ``template``, and the weights sum to 1:
    ``average_states`` checks it.
    """
    sums = {}
    keys_by_dtype: dict[torch.dtype, list[str]] = {}
    for key, tensor in template.items():
        low_precision = tensor.is_floating_point() and tensor.dtype != torch.float64
        dtype = torch.float32 if low_precision else torch.float64
        sums[key] = torch.zeros_like(tensor, dtype=dtype)
        keys_by_dtype.setdefault(dtype, []).append(key)
    for state, weight in zip(states, weights, strict=True):
        # one call a dtype: on a GPU, a kernel per tensor takes longer than the sum
        for keys in keys_by_dtype.values():
            totals = [sums[key] for key in keys]
            tensors = [state[key].detach().to(sums[key]) for key in keys]
            torch._foreach_add_(totals, torch._foreach_mul(tensors, weight))
    average = {}
    for key, tensor in template.items():
        total = sums[key] if tensor.is_floating_point() else sums[key].round()
        average[key] = total.to(tensor.dtype)
    return average


def normalize_weights(weights: Sequence[float] | Tensor, count: int) -> list[float]:
    """Check as many weights as there are states, and divide them by their sum."""
    values = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
    total = sum(values)
    are_finite = all(0 <= value < math.inf for value in values)
    are_valid = are_finite and len(values) == count and total > 0
    expected = f"be one for each of {count} states, at least 0, finite and not all 0"
    check_setting("weights", values, are_valid, expected)
    return [value / total for value in values]


def check_same_layout(states: Sequence[State]) -> None:
    """Raise a ValueError that names the first key whose shape or dtype differs between states."""
    layouts = [_layout(state) for state in states]
    first = layouts[0]
    for index, layout in enumerate(layouts):
        if layout != first:
            key = min(key for key, _ in layout.items() ^ first.items())
            got = layout.get(key, "missing")
            expected = first.get(key, "missing")
            raise ValueError(f"'{key}' is {got} in state {index}, but {expected} in state 0")


def _layout(state: State) -> dict[str, str]:
    """The dtype and shape of each tensor, in words."""
    return {key: f"{value.dtype} of shape {tuple(value.shape)}" for key, value in state.items()}


def check_finite_average(average: State, states: Sequence[State]) -> None:
    """Raise a ValueError if the average is not finite because one of the states is not."""
    # NaN and infinity remain in the average; the norm of very large finite values can overflow
    nonempty = [t for t in average.values() if t.is_floating_point() and t.numel()]
    if not nonempty:
        return
    norms = [norm.float() for norm in torch._foreach_norm(nonempty, 1)]
    if bool(torch.stack(norms).isfinite().all()):
        return
    for index, state in enumerate(states):
        for key, tensor in state.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"'{key}' of state {index} holds NaN or infinity: its training diverged "
                    "(a lower learning rate or 32-bit precision may help)"
                )
