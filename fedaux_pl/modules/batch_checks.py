"""Checks of batches that enter a LightningModule."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def first_entry(batch: Any) -> Any:
    """Return the inputs of a batch: a tensor, or first in a tuple; raise a ValueError if not."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        raise ValueError(
            f"a batch: got a mapping of {', '.join(map(str, batch))}; expected inputs, or a tuple "
            "that begins with them: return tuples from the data set, or use a collate_fn"
        )
    return batch[0]


def unpack_pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the two tensors of a batch (inputs, labels); raise a ValueError for another one."""
    if isinstance(batch, Tensor) or len(batch) < 2:
        got = "one tensor" if isinstance(batch, Tensor) else f"{len(batch)} entry"
        raise ValueError(f"a batch: got {got}; expected (inputs, labels): add the labels")
    return first_entry(batch), batch[1]


def check_inputs(model: nn.Module, x: Tensor) -> None:
    """Raise a ValueError for NaN or infinity, and what the model's ``check_inputs`` raises."""
    if torch.compiler.is_compiling():  # also in an export: graphs do not depend on values
        return
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise ValueError("the inputs hold NaN or infinity: remove or repair those that do")
    check = getattr(model, "check_inputs", None)
    if callable(check):
        check(x)


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise a ValueError unless labels are int64 (or uint8) of shape (N,) in 0 ... C - 1."""
    if labels.ndim != 1 or labels.dtype not in (torch.int64, torch.uint8):
        raise ValueError(
            f"labels: got {labels.dtype} of shape {tuple(labels.shape)}; expected class indices of "
            "shape (N,) and dtype int64: use labels.long() for other integers, "
            "labels.argmax(dim=1) for one-hot labels"
        )
    low, high = torch.stack(torch.aminmax(labels)).tolist() if labels.numel() else (0, 0)
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels: got {low} to {high}; expected 0 ... {num_classes - 1}: number the classes "
            "from 0, or change num_classes"
        )


def check_soft_labels(targets: Tensor, num_classes: int) -> None:
    """Raise a ValueError unless soft labels are probabilities of shape (N, C)."""
    has_shape = targets.ndim == 2 and targets.shape[1] == num_classes
    # Half precision rounds probabilities to 3 digits. A comparison with NaN is false.
    has_sum = (targets.float().sum(dim=-1) - 1).abs() < 0.01
    if not has_shape or not bool((targets >= 0).all() & has_sum.all()):
        low, high = torch.stack(torch.aminmax(targets)).tolist()
        raise ValueError(
            f"soft labels: got shape {tuple(targets.shape)}, from {low:.4g} to {high:.4g}; "
            f"expected probabilities of shape (N, {num_classes}), at least 0 and with sum 1 in "
            "each row: apply softmax(dim=-1) to logits; if they hold NaN or infinity, lower the "
            "learning rate of the teachers"
        )
