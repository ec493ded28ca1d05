"""Which client holds which sample: given by the data, and what a client holds out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaux_pl.data.text_reader import class_indices, class_names
from fedaux_pl.errors import DataError
from fedaux_pl.functional import derive_seed


def to_names(values: Any) -> NDArray[Any]:
    """An array of the values; a table's column of names, whose dtype is object, becomes strings."""
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    return array


def name_clients(
    values: NDArray[Any] | Sequence[Any], count: int, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers the clients of ``count`` samples; ``what`` names the values in messages.

    Returns:
        The client of each sample, int64 of shape (N,), and the names: sorted by value if all are
        integers, otherwise alphabetically.

    Example:
        >>> name_clients(["b", "a", "b"], 3, "site")
        (tensor([1, 0, 1]), ('a', 'b'))
    """
    array = to_names(values)
    if array.shape != (count,):
        raise DataError(
            f"{what} must have one client for each of the {count} samples, but has the shape "
            f"{array.shape}"
        )
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind == "U"):
        raise DataError(
            f"{what} must hold client names or integers, but is {array.dtype}: convert it"
        )
    names = [str(value).strip() for value in array.tolist()]
    if "" in names:
        raise DataError(
            f"{what} is empty for sample {names.index('')}: name the client of every sample"
        )
    distinct = class_names(names)
    return class_indices(names, distinct), distinct


def hold_out(parts: Sequence[Tensor], share: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Holds out a share of the samples of every client, at random.

    A client keeps at least one sample, and at least one sample is held out in all. ``parts`` are
    the positions of each client's samples. Returns those that each client keeps, and the held-out
    ones, sorted.

    Example:
        >>> kept, held = hold_out([torch.arange(6), torch.tensor([6])], 0.34, seed=0)
        >>> [len(part) for part in kept], len(held)
        ([4, 1], 2)
    """
    counts = [min(round(share * len(part)), len(part) - 1) for part in parts]
    if not any(counts):
        sizes = [len(part) for part in parts]
        if max(sizes) < 2:
            raise DataError(
                f"validation = {share} cannot be held out: none of the {len(parts)} clients has "
                "more than one sample; use fewer clients, or give validation data"
            )
        counts[sizes.index(max(sizes))] = 1
    kept, held = [], []
    for client, (part, count) in enumerate(zip(parts, counts, strict=True)):
        generator = torch.Generator().manual_seed(derive_seed(seed, client))
        order = torch.randperm(len(part), generator=generator)
        held.append(part[order[:count]])
        kept.append(part[order[count:].sort().values])
    return kept, torch.cat(held).sort().values
