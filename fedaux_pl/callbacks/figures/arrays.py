"""Checks of the arrays that figures are drawn from, and statistics of them."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any] | Tensor
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_CLIENTS = 100
"""The maximum number of clients in a figure; of more clients the first ones are shown."""


def _plain(values: Array, name: str, axes: tuple[str, ...]) -> NDArray[Any]:
    """Converts an array or a tensor on any device to numpy and checks its shape."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16
        plain = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    else:
        plain = np.asarray(values)
    if plain.ndim != len(axes) or plain.size == 0:
        raise ValueError(
            f"{name} must have shape ({', '.join(axes)}{',' if len(axes) == 1 else ''}) with at "
            f"least one entry, but have shape {plain.shape}"
        )
    return plain


def as_floats(values: Array, name: str, axes: tuple[str, ...]) -> Floats:
    """Converts to float64 and checks the shape and that all values are finite."""
    plain = _plain(values, name, axes).astype(np.float64)
    if not np.isfinite(plain).all():
        raise ValueError(f"{name} must be finite, but hold {plain[~np.isfinite(plain)][0]}")
    return plain


def as_integers(values: Array, name: str, axes: tuple[str, ...]) -> Integers:
    """Converts to int64 and checks the shape and that the values are integers."""
    plain = _plain(values, name, axes)
    if not np.issubdtype(plain.dtype, np.integer):
        raise ValueError(f"{name} must be integers, but are {plain.dtype}")
    return plain.astype(np.int64)


def class_indices(
    values: Array, name: str, count: int, of_what: str, classes: Sequence[str]
) -> Integers:
    """Checks that there is one valid class index for each sample or client."""
    indices = as_integers(values, name, (f"n_{of_what}s",))
    if len(indices) != count:
        raise ValueError(
            f"{name} must have one entry for each of the {count} {of_what}s of scores, but have "
            f"{len(indices)}"
        )
    if indices.min() < 0 or indices.max() >= len(classes):
        raise ValueError(
            f"{name} must lie in 0..{len(classes) - 1}, as there are {len(classes)} classes, but "
            f"range from {indices.min()} to {indices.max()}"
        )
    return indices


def check_images(images: Array, count: int) -> None:
    """Checks that there are ``count`` uint8 images with 1 or 3 channels."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images must have shape (N, C, H, W) with C = 1 or 3, but have {tuple(images.shape)}"
        )
    if images.dtype not in (torch.uint8, np.uint8):
        raise ValueError(f"images must be uint8, but are {images.dtype}")
    if images.shape[0] != count:
        raise ValueError(
            f"scores must have one column for each of the {images.shape[0]} images, but have "
            f"{count}"
        )


def relative_weights(
    scores: Array, client_classes: Array, classes: Sequence[str]
) -> tuple[Floats, Integers]:
    """Computes n s_i(x) / sum_j s_j(x) of the shown clients i; the sum is over all n clients."""
    axes = ("n_clients", "n_samples")
    table = _plain(scores, "scores", axes)
    main = class_indices(client_classes, "client_classes", len(table), "client", classes)
    total = np.zeros(table.shape[1])
    for start in range(0, len(table), MAX_CLIENTS):  # no float64 copy of the whole table
        part = as_floats(table[start : start + MAX_CLIENTS], "scores", axes)
        if part.min() < 0:
            raise ValueError(f"scores must be at least 0, but the smallest is {part.min()}")
        total += part.sum(axis=0)
    if total.min() == 0:
        raise ValueError(
            f"every sample needs a client with a positive score, but sample {total.argmin()} has "
            "the score 0 of all clients"
        )
    shown = as_floats(table[:MAX_CLIENTS], "scores", axes)
    return shown * (len(table) / total), main[:MAX_CLIENTS]


def mean_by_class(weights: Floats, labels: Integers, n_classes: int) -> Floats:
    """Averages over the samples of each class; NaN for a class without samples."""
    member = labels[:, None] == np.arange(n_classes)
    sizes = member.sum(axis=0)
    means = np.full((len(weights), n_classes), np.nan)
    np.divide(weights @ member.astype(np.float64), sizes, out=means, where=sizes > 0)
    return means


def runs_of(values: Integers) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each run of equal values."""
    return pairwise([0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)])


def round_down(value: float) -> int:
    """The largest of 0, 1, 2, 5, 10, 20, 50, ... that is at most the value."""
    if value < 1:
        return 0
    power: int = 10 ** math.floor(math.log10(value))
    return power * max(k for k in (1, 2, 5) if k * power <= value)


def clipped(value: float, low: float, high: float) -> float:
    """The value, limited to low ... high."""
    return min(max(value, low), high)
