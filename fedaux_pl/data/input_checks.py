"""Checks of a user's settings, inputs and files, and notes about them."""

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from fedaux_pl.data.lazy_inputs import Inputs, chunks
from fedaux_pl.errors import (
    DataError,
    DataNotFoundError,
    check_setting,
    did_you_mean_path,
    first_line,
)
from fedaux_pl.lightning import rank_zero_only
from fedaux_pl.names import terminal_safe

FileState = tuple[int, int, int]
"""The state of a file, as ``file_state`` returns it."""
_LARGE = 1 << 30  # bytes; a smaller file may be compressed by any factor
_MAX_EXPANSION = 100  # images and texts are compressed 2 to 20 times


def not_found(what: str, where: Path, remedy: str) -> DataNotFoundError:
    """Return the error for missing data, "<what> <where>. <remedy>; ...", for the caller."""
    embedded = "to run without any download use the embedded data: `configs/quickstart.yaml`"
    return DataNotFoundError(f"{what} {where.absolute()}.\n{remedy}; {embedded}.")


def path_not_found(what: str, path: Path) -> DataNotFoundError:
    """Return the error for a path to the user's own data that does not exist."""
    meant = did_you_mean_path(path)
    return DataNotFoundError(f"{what} {path.absolute()}{meant}: correct the path")


@cache
@rank_zero_only
def note(text: str) -> None:
    """Print a note about the data above the progress bars, once and only in the first process."""
    tqdm.write(f"note: {terminal_safe(text)}", file=sys.stderr)


def expand(path: str | Path | None) -> Path | None:
    """Replace ``~`` by the home folder; None stays None."""
    return None if path is None else Path(path).expanduser()


def check_size(size: int) -> int:
    """Return the height and width of images, or raise a ValueError if it is below 1."""
    check_setting("size", size, size >= 1, "be a positive number of pixels")
    return size


def check_test_data(fraction: float, option: str, path: str | Path | None) -> None:
    """Raise a ValueError for a wrong fraction, or if ``option`` already gives test data."""
    check_setting("test_fraction", fraction, 0 <= fraction < 1, "lie in [0, 1)")
    if fraction and path is not None:
        raise ValueError(f"test data comes from {option} or test_fraction: set one, not both")


def check_finite(inputs: Inputs) -> None:
    """Raise a DataError if inputs contain NaN or infinity."""
    if inputs.is_floating_point():
        finite = [torch.isfinite(chunk[:, None]).flatten(1).all(dim=1) for chunk in chunks(inputs)]
        is_bad = ~torch.cat(finite)
        if is_bad.any():
            raise DataError(
                f"inputs: got NaN or infinity in {int(is_bad.sum())} of {len(inputs)} samples, the "
                f"first at position {int(is_bad.nonzero()[0])}; expected finite numbers: repair "
                "these samples or remove them"
            )


def check_unit_range(inputs: Inputs, what: str) -> None:
    """Raise a DataError if images of floats have values outside [0, 1]."""
    if inputs.ndim == 4 and inputs.is_floating_point():
        lows, highs = zip(*map(torch.aminmax, chunks(inputs)), strict=True)
        low = float(min(lows))
        high = float(max(highs))
        if low < 0 or high > 1:
            raise DataError(
                f"{what}: got {inputs.dtype} from {low:g} to {high:g}; expected uint8, or floats "
                "in [0, 1]: convert them to uint8 in 0 ... 255, or scale them to [0, 1]"
            )


def check_same_kind(one: Inputs, other: Inputs, what: str) -> None:
    """Raise a DataError if the samples of two data sets differ in shape or dtype."""
    kinds = [f"{inputs.dtype} of shape {tuple(inputs.shape[1:])}" for inputs in (one, other)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"{what}: got {' and '.join(kinds)}; expected samples of the same shape and dtype: "
            "choose two sources of images (usually uint8), or two of texts (int32), and convert "
            "the inputs of one, or set `size`, `channels` or `max_length`, to match"
        )


def check_expansion(size: int, compressed: int, what: str) -> None:
    """Raise a DataError if decompressed data would fill the memory or grow suspiciously.

    Args:
        size: The bytes after decompression, as the file declares them or as counted so far.
        compressed: The bytes before decompression.
        what: The name of the data in messages.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise DataError(
            f"{what} has {size / 2**30:,.2f} GiB or more, but the memory has "
            f"{memory / 2**30:,.2f} GiB: use fewer or smaller samples"
        )
    if size > max(_LARGE, _MAX_EXPANSION * compressed):
        raise DataError(
            f"{what} grows from {compressed / 2**30:,.2f} to {size / 2**30:,.2f} GiB or more when "
            "it is decompressed, a possible decompression bomb: if you trust it, store it "
            "uncompressed"
        )


def file_state(file: Path | int) -> FileState:
    """Return the inode, size and modification time of a file, which change if it is written."""
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, now: FileState, opened: FileState) -> None:
    """Raise a DataError if the state of a file differs from its state when it was opened."""
    if now != opened:
        raise DataError(
            f"{path.absolute()} has changed since it was opened, from {opened[1]:,} to "
            f"{now[1]:,} bytes or in its modification time: do not change data while a run reads "
            "them"
        )


def reason_of(error: Exception) -> str:
    """Return a library's message about a damaged file, as one line of at most 200 characters."""
    reason = first_line(error)
    return reason if len(reason) <= 200 else f"{reason[:197]}..."


def shorten(names: Sequence[str], limit: int = 10) -> str:
    """Join at most ``limit`` names for a message, each shortened to one line of 40 characters."""
    shown = []
    for name in names[:limit]:
        text = name if name.isprintable() else repr(name)
        shown.append(text if len(text) <= 40 else f"{text[:37]}...")
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
