"""Checks of a user's settings and inputs; the messages say what to change."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedaux_pl.data.foreign_files import shorten
from fedaux_pl.errors import DataError, DataNotFoundError


def not_found(what: str, where: Path, remedy: str) -> DataNotFoundError:
    """Makes the error "<what> <where>. <remedy>; ..." for missing data, for the caller to raise."""
    embedded = "to run without any download use the embedded data: `configs/quickstart.yaml`"
    return DataNotFoundError(f"{what} {where.absolute()}.\n{remedy}; {embedded}.")


def expand(path: str | Path | None) -> Path | None:
    """The path with ``~`` replaced by the home folder; None stays None."""
    return None if path is None else Path(path).expanduser()


def check_size(size: int) -> int:
    """Returns the size (height and width of images), or raises a ValueError below 1."""
    if size < 1:
        raise ValueError(f"size must be a positive number of pixels, but is {size}")
    return size


def check_test_data(test_share: float, option: str, path: str | Path | None) -> None:
    """Raises a ValueError for a wrong share, or if ``option`` names test data as well."""
    if not 0 <= test_share < 1:
        raise ValueError(f"test_share must lie in [0, 1), but is {test_share}")
    if test_share and path is not None:
        raise ValueError(f"test data comes from {option} or test_share: set one, not both")


def number_classes(labels: Iterable[int], where: str, remedy: str) -> tuple[str, ...]:
    """The integers 0, 1, 2 ... as class names; raises a DataError if labels have gaps."""
    found = sorted(set(labels))
    if found != list(range(len(found))):
        raise DataError(
            f"labels must be 0 ... {len(found) - 1} for {len(found)} classes, but {where} are "
            f"{shorten([str(label) for label in found])}: {remedy} the names of all classes, which "
            "the labels index from 0"
        )
    return tuple(map(str, found))


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
