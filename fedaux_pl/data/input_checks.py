"""Checks of a data set's inputs, for which the message says what to change."""

import torch
from torch import Tensor

from fedaux_pl.errors import DataError


def check_finite(inputs: Tensor) -> None:
    """Raises a DataError for inputs with NaN or infinity."""
    if inputs.is_floating_point():
        bad = ~torch.isfinite(inputs[:, None]).flatten(1).all(dim=1)
        if bad.any():
            raise DataError(
                f"inputs must be finite, but {int(bad.sum())} of {len(inputs)} samples hold NaN or "
                f"infinity, the first at position {int(bad.nonzero()[0])}: repair or remove them"
            )


def check_same_kind(one: Tensor, other: Tensor, what: str) -> None:
    """Raises a DataError if the samples of two data sets differ in kind, shape or dtype."""
    if one.shape[1:] == other.shape[1:] and one.dtype == other.dtype:
        return
    kinds, both = {_kind(one), _kind(other)}, f"{_describe(one)} and {_describe(other)}"
    if len(kinds) > 1:
        remedy = "choose two sources of images, or two of texts"
    elif one.dtype != other.dtype:
        remedy = "convert the inputs of one source (images are uint8, texts int32)"
    elif kinds == {"texts"}:
        remedy = "set `max_length` of one source to match"
    else:
        remedy = "set `size` (or `channels`) of one source to match"
    raise DataError(f"{what} must be samples of the same shape and dtype, but are {both}: {remedy}")


def check_pixels(inputs: Tensor, what: str) -> None:
    """Raises a DataError for images of floats outside [0, 1]."""
    if inputs.ndim == 4 and inputs.is_floating_point():
        low, high = (float(value) for value in torch.aminmax(inputs))
        if low < 0 or high > 1:
            raise DataError(
                f"{what} must be uint8, or floats in [0, 1], but are {inputs.dtype} from {low:g} "
                f"to {high:g}: convert them to uint8 in 0 ... 255, or scale them to [0, 1]"
            )


def _kind(inputs: Tensor) -> str:
    if inputs.ndim == 2 and not inputs.is_floating_point():
        return "texts"
    return "images" if inputs.ndim == 4 else "samples"


def _describe(inputs: Tensor) -> str:
    dtype = str(inputs.dtype).removeprefix("torch.")
    return f"{_kind(inputs)} of shape {tuple(inputs.shape[1:])} ({dtype})"
