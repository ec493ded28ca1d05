"""Checks of a user's settings, inputs and files, and notes; messages say what to change."""

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
"""Of a file, see ``file_state``."""
_LARGE = 1 << 30  # bytes; below it any compression is accepted
_MAX_EXPANSION = 100  # images and texts are compressed 2 to 20 times


def not_found(what: str, where: Path, remedy: str) -> DataNotFoundError:
    """Make the error "<what> <where>. <remedy>; ..." for missing data, for the caller to raise."""
    embedded = "to run without any download use the embedded data: `configs/quickstart.yaml`"
    return DataNotFoundError(f"{what} {where.absolute()}.\n{remedy}; {embedded}.")


def path_not_found(what: str, path: Path) -> DataNotFoundError:
    """Make the error for a path of the user's own data that does not exist."""
    meant = did_you_mean_path(path)
    return DataNotFoundError(f"{what} {path.absolute()}{meant}: correct the path")


@cache
@rank_zero_only
def note(text: str) -> None:
    """Print what a user should know about the data, above all bars: once, in the first process."""
    tqdm.write(f"note: {terminal_safe(text)}", file=sys.stderr)


def expand(path: str | Path | None) -> Path | None:
    """Replace ``~`` by the home folder; None stays None."""
    return None if path is None else Path(path).expanduser()


def check_size(size: int) -> int:
    """Return the size (height and width of images), or raise a ValueError below 1."""
    check_setting("size", size, size >= 1, "be a positive number of pixels")
    return size


def check_test_data(fraction: float, option: str, path: str | Path | None) -> None:
    """Raise a ValueError for a wrong fraction, or if ``option`` names test data as well."""
    check_setting("test_fraction", fraction, 0 <= fraction < 1, "lie in [0, 1)")
    if fraction and path is not None:
        raise ValueError(f"test data comes from {option} or test_fraction: set one, not both")


def check_finite(inputs: Inputs) -> None:
    """Raise a DataError for inputs with NaN or infinity."""
    if inputs.is_floating_point():
        finite = [torch.isfinite(chunk[:, None]).flatten(1).all(dim=1) for chunk in chunks(inputs)]
        bad = ~torch.cat(finite)
        if bad.any():
            raise DataError(
                f"inputs: got NaN or infinity in {int(bad.sum())} of {len(inputs)} samples, the "
                f"first at position {int(bad.nonzero()[0])}; expected finite numbers: repair or "
                "remove them"
            )


def check_unit_range(inputs: Inputs, what: str) -> None:
    """Raise a DataError for images of floats outside [0, 1]."""
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
    """Raise a DataError if ``size`` bytes, declared or counted so far, would fill the memory."""
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
    """Return what changes when a file is written: inode, size and modification time."""
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, now: FileState, opened: FileState) -> None:
    """Raise a DataError if the state of a file is not that of when it was opened."""
    if now != opened:
        raise DataError(
            f"{path.absolute()} has changed since it was opened, from {opened[1]:,} to "
            f"{now[1]:,} bytes or in its time: leave the data alone while a run reads them"
        )


def reason_of(error: Exception) -> str:
    """Return what a library says about a damaged file, on one line of at most 200 characters."""
    reason = first_line(error)
    return reason if len(reason) <= 200 else f"{reason[:197]}..."


def shorten(names: Sequence[str], limit: int = 10) -> str:
    """Join names for a message: at most ``limit``, each on one line and of 40 characters."""
    shown = []
    for name in names[:limit]:
        text = name if name.isprintable() else repr(name)
        shown.append(text if len(text) <= 40 else f"{text[:37]}...")
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
