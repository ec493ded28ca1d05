"""Parameter averaging (McMahan et al. 2017; FedAUX, Algorithm 2).

    theta = sum_i |D_i| theta_i / sum_l |D_l|

Averaged are parameters and buffers alike: a BatchNorm layer whose weights are averaged but whose
running statistics are not belongs to no client.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def average_states(states: Sequence[State], weights: Sequence[float] | Tensor) -> dict[str, Tensor]:
    """Averages the state dicts of K models with the given weights.

    Floating tensors are accumulated in at least float32. Integer and boolean tensors (BatchNorm's
    counter of batches) are averaged, rounded to the nearest and keep their dtype.

    Args:
        states: K state dicts with the same keys, shapes and dtypes.
        weights: K non-negative weights, usually |D_i|; they are divided by their sum.

    Returns:
        A new state dict on the device of the first one.

    Raises:
        ValueError: If keys, shapes or dtypes differ, a tensor holds NaN or infinity (each naming
            the key), or the weights are negative, not finite or sum to 0.
    """
    shares = normalized_weights(weights, len(states))
    check_same_layout(states)  # here, where states are numbered as the caller numbers them
    return from_sum(sum_states(states, shares, states[0]), states[0])


def sum_states(states: Sequence[State], shares: Sequence[float], like: State) -> dict[str, Tensor]:
    """The weighted sum of some of the models that are averaged, those of one process.

    Args:
        states: Any number of state dicts, none as well.
        shares: As many weights; those of all processes together sum to 1.
        like: A state dict of the same layout.

    Returns:
        Sums in at least float32, in float64 for integers; sums of several processes add up to that
        of all models, which ``from_sum`` turns into a state dict.
    """
    check_same_layout([like, *states])
    sums = {}
    for key, first in like.items():
        low_precision = first.is_floating_point() and first.dtype != torch.float64
        sums[key] = torch.zeros_like(first, dtype=torch.float32 if low_precision else torch.float64)
    # All tensors of a kind at once: on a GPU, a kernel for each of them takes longer than the sum.
    for dtype in {total.dtype for total in sums.values()}:
        totals = {key: total for key, total in sums.items() if total.dtype == dtype}
        for state, share in zip(states, shares, strict=True):
            given = [state[key].detach().to(total) for key, total in totals.items()]
            torch._foreach_add_(list(totals.values()), torch._foreach_mul(given, share))
        if not _all_finite(list(totals.values())):
            check_finite(states)
    return sums


def _all_finite(totals: Sequence[Tensor]) -> bool:
    """False if one of a dtype holds NaN or infinity, which sums keep, or very large values.

    What a weighted sum is made of is finite where the sum is.
    """
    filled = [total for total in totals if total.numel()]
    return not filled or bool(torch.stack(torch._foreach_norm(filled, 1)).isfinite().all())


def from_sum(sums: State, like: State) -> dict[str, Tensor]:
    """The sum over all models as a state dict with the types of ``like``."""
    return {
        key: (sums[key] if first.is_floating_point() else sums[key].round()).to(first.dtype)
        for key, first in like.items()
    }


def normalized_weights(weights: Sequence[float] | Tensor, count: int) -> list[float]:
    """Checks K weights and divides them by their sum."""
    values = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
    if count == 0:
        raise ValueError("there are no states to average: give at least one")
    if len(values) != count:
        raise ValueError(f"{count} states need {count} weights, but there are {len(values)}")
    total = sum(values)
    for index, value in enumerate(values):
        if not 0 <= value < float("inf"):
            raise ValueError(f"weight {index} is {value}, but must be finite and at least 0")
    if total == 0:
        raise ValueError("the weights sum to 0: at least one must be positive")
    return [value / total for value in values]


def check_same_layout(states: Sequence[State]) -> None:
    """Raises a ValueError that names the first key in which the states differ in layout."""
    first = states[0]
    for index, state in enumerate(states[1:], start=1):
        if state.keys() != first.keys():
            missing = sorted(first.keys() - state.keys())
            extra = sorted(state.keys() - first.keys())
            raise ValueError(
                f"state {index} has other keys than state 0: missing {missing}, unexpected {extra}"
            )
        for key, tensor in state.items():
            if tensor.shape != first[key].shape or tensor.dtype != first[key].dtype:
                raise ValueError(
                    f"'{key}' is {tensor.dtype} of shape {tuple(tensor.shape)} in state {index}, "
                    f"but {first[key].dtype} of shape {tuple(first[key].shape)} in state 0"
                )


def check_finite(states: Sequence[State]) -> None:
    """Raises a ValueError that names the first key that holds NaN or infinity."""
    flags = [
        (index, key, tensor.isfinite().all())
        for index, state in enumerate(states)
        for key, tensor in state.items()
        if tensor.is_floating_point()
    ]
    # One transfer from the device for all flags, not one for each tensor.
    if not flags or bool(torch.stack([flag.to(flags[0][2].device) for _, _, flag in flags]).all()):
        return
    index, key, _ = next(entry for entry in flags if not entry[2])
    raise ValueError(
        f"'{key}' of state {index} holds NaN or infinity: its training diverged "
        "(a lower learning rate or 32-bit precision may help)"
    )
